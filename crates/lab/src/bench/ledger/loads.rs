//! The load that a job of the day puts on a device.

use super::day::{Day, Piece};
use tidegate_demo::levels::{Load, MEMORY_BYTES};

/// Load of a job, by its index in the day.
pub fn load_of_job(day: &Day, job: usize) -> Load {
    let mut load = Load::new(day.draw.of(13).of(job as u64));
    if let Some(bottleneck) = day.jobs[job].bottleneck {
        bottleneck.lift(&mut load.full);
        load.busy = load.full;
    }
    if day.jobs[job].growth > 0 {
        (load.memory_bytes, load.growth) = (MEMORY_BYTES / 4, day.jobs[job].growth);
    }
    load
}

/// Load of the job that holds a unit, or of the unit while nobody holds it.
pub fn load_of_piece(day: &Day, unit: usize, piece: &Piece) -> Load {
    piece.by.map_or_else(|| Load::new(day.draw.of(12).of(unit as u64)), |by| load_of_job(day, by.job))
}
