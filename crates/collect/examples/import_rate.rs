use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_collect::generate::{SacctFile, sacct};
use tidegate_collect::{ImportOptions, Mapping, Source, import};
use tidegate_log::*;
#[derive(Default)]
struct Null(AtomicU64);
impl EventLog for Null {
    fn create_topic(&self, _: &str, _: TopicConfig) -> Result<(), LogError> {
        Ok(())
    }
    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        Ok(vec![])
    }
    fn append(&self, _: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let bytes: usize = batch.records.iter().map(|r| r.key.len() + r.payload.len()).sum();
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Appended { first_offset: 0, written: batch.records.len() as u64, duplicates: 0 })
    }
    fn read(&self, _: &TopicPartition, _: u64, _: usize) -> Result<Vec<StoredRecord>, LogError> {
        unimplemented!()
    }
    fn extent(&self, _: &TopicPartition) -> Result<Extent, LogError> {
        unimplemented!()
    }
    fn offset_for_time(&self, _: &TopicPartition, _: i64) -> Result<u64, LogError> {
        unimplemented!()
    }
    fn wait_for(&self, _: &TopicPartition, _: u64, _: Duration) -> Result<bool, LogError> {
        unimplemented!()
    }
    fn commit_offset(&self, _: &str, _: &TopicPartition, _: u64) -> Result<(), LogError> {
        unimplemented!()
    }
    fn committed_offset(&self, _: &str, _: &TopicPartition) -> Result<Option<u64>, LogError> {
        unimplemented!()
    }
    fn trim(&self, _: &TopicPartition, _: u64) -> Result<Extent, LogError> {
        unimplemented!()
    }
    fn apply_retention(&self, _: i64) -> Result<(), LogError> {
        unimplemented!()
    }
    fn fence(&self) -> Result<u64, LogError> {
        unimplemented!()
    }
}
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rows: u64 = args[1].parse().unwrap();
    let path = "/tmp/collect_rate.txt";
    let t = Instant::now();
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).unwrap());
    let made =
        sacct(&mut out, &SacctFile { steps: args.len() > 2, ..SacctFile::year(1, rows, 2048) }).unwrap();
    out.flush().unwrap();
    let bytes = std::fs::metadata(path).unwrap().len();
    println!(
        "generated {} rows {} MB in {:.1} s, mean utilisation {:.2}",
        made.rows,
        bytes >> 20,
        t.elapsed().as_secs_f64(),
        made.gpu_ms_ended as f64 / 2048.0 / 365.0 / 86.4e6
    );
    for _ in 0..3 {
        let log = Null::default();
        let (c, t) = (cpu_s(), Instant::now());
        let s = import(
            Source::File(path.into()),
            &Mapping::load("sacct").unwrap(),
            &ImportOptions::default(),
            &log,
            &mut |_| {},
        )
        .unwrap();
        let cpu = cpu_s() - c;
        println!(
            "{} events, {:.2} s wall, {:.2} s cpu, {:.3} us/event, {:.0} events/s/core, {:.1} bytes/event, {:.0} MB/s; rejected {}",
            s.events_written,
            t.elapsed().as_secs_f64(),
            cpu,
            cpu * 1e6 / s.events_written as f64,
            s.events_written as f64 / cpu,
            log.0.load(Ordering::Relaxed) as f64 / s.events_written as f64,
            bytes as f64 / 1e6 / cpu,
            s.rejected()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
