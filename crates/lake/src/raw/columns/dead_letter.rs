//! Columns of `dead_letters`.

use tidegate_events::v1::DeadLetter;

use super::{Columns, Read, SOURCE_DOC, env, int};

pub(in crate::raw) const DEAD: Columns<DeadLetter> = &[
    (
        "cluster",
        Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())),
        "Cluster the input was for, where known.",
    ),
    ("origin", Read::Text(|e| Some(&e.origin)), "File name, or topic name of the log."),
    ("line", Read::Int(|e| int(e.line)), "Line or row in the file; 1 is the first line."),
    ("partition", Read::Int(|e| e.partition.map(i64::from)), "Partition of the log."),
    ("offset", Read::Int(|e| int(e.offset)), "Offset in the partition."),
    ("code", Read::Text(|e| Some(&e.code)), "Stable code of what is wrong."),
    ("reason", Read::Text(|e| Some(&e.reason)), "What is wrong and how to fix it."),
    (
        "raw",
        Read::Text(|e| std::str::from_utf8(&e.raw).ok()),
        "The input itself, at most 4096 bytes; NULL if it is not text.",
    ),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "Event time of the input if it had one, else 1970.",
    ),
];
