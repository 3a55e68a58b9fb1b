//! Where the autopilot's decisions reach real clusters: input and output at its edge.

pub mod slurm;
