//! Trials of Tidegate itself: benches of speed, cost and exactness, and chaos runs that kill
//! processes.
//!
//! `tidegate bench …` and `tidegate chaos …` are these commands: the program passes their arguments
//! here and contains none of their generators. [`bench`] measures on input that it makes from a
//! seed and checks every answer against the known truth. [`chaos`] kills and pauses real processes
//! and counts what is lost.
//!
//! ```no_run
//! use clap::Parser;
//! use tidegate_lab::bench::{self, BenchArgs};
//!
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(flatten)]
//!     bench: BenchArgs,
//! }
//!
//! let cli = Cli::parse_from(["bench", "codec", "--scale", "10"]);
//! bench::run(cli.bench)?; // prints JSON
//! # Ok::<(), tidegate_workspace::CommandError>(())
//! ```
#![warn(missing_docs)]

pub mod bench;
pub mod chaos;
