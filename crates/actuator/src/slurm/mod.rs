//! The Slurm target.
