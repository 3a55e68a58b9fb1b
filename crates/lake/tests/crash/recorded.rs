//! A recorded history, continued from any of its instants.

use std::collections::BTreeMap;
use std::time::Instant;

use arrow::array::RecordBatch;
use tidegate_lake::testing::equivalence::TableContents;

use crate::scenario::Scenario;
use crate::scratch;
use crate::snapshots::{self, Snapshot};
use crate::tables::Tables;

/// A history, its undisturbed result, and every instant on the way.
pub struct RecordedHistory {
    seed: u64,
    scenario: Scenario,
    expected: TableContents,
    all_snapshots: Vec<Snapshot>,
    /// Tables that differ from the expected ones, and after which crash.
    pub differences: Vec<String>,
    folder: tempfile::TempDir,
}

impl RecordedHistory {
    pub async fn new(seed: u64, tables: Tables) -> Self {
        let folder = scratch();
        let scenario = Scenario::new(seed, tables).await;
        let undisturbed = folder.path().join("undisturbed");
        scenario.play_rest_at_once(&undisturbed).await;
        let expected = scenario.outcome(&undisturbed).await;
        for (table, rows) in &expected {
            assert!(rows.num_rows() > 0, "seed {seed}: {table} is empty");
        }
        let (data, album) = (folder.path().join("whole"), folder.path().join("album"));
        snapshots::begin(&data, &album);
        scenario.play(&data, 0).await;
        let all_snapshots = snapshots::end();
        let mut recorded = Self { seed, scenario, expected, all_snapshots, differences: Vec::new(), folder };
        let outcome = recorded.scenario.outcome(&data).await;
        recorded.compare(&outcome, &format!("seed {seed}, undisturbed"));
        recorded
    }

    /// Continues from these instants, and where the log was written to also from the middle of that
    /// write. Returns their number.
    pub async fn die_at(
        &mut self,
        is_wanted: &mut dyn FnMut(&Snapshot) -> bool,
        kinds: &mut BTreeMap<String, usize>,
    ) -> usize {
        let wanted: Vec<usize> =
            (0..self.all_snapshots.len()).filter(|n| is_wanted(&self.all_snapshots[*n])).collect();
        let mut points = 0;
        for number in wanted {
            self.recover(number, false).await;
            let is_written = number > 0 && self.all_snapshots[number].is_of_the_log();
            if is_written {
                self.recover(number, true).await;
            }
            points += 1 + usize::from(is_written);
            *kinds.entry(self.all_snapshots[number].done.clone()).or_default() += 1;
        }
        points
    }

    /// Continues from an instant and compares the result.
    async fn recover(&mut self, number: usize, is_torn: bool) {
        let (begun, snapshot) = (Instant::now(), &self.all_snapshots[number]);
        let data = self.folder.path().join("recovered");
        match is_torn {
            true => {
                snapshot.lay_out_torn(&self.all_snapshots[number - 1], &data, (number % 10) as f64 / 10.0)
            }
            false => snapshot.lay_out(&data),
        }
        // After a commit continue in small reads as before, since a flush may have to be repaired;
        // of the other instants every fourth.
        let as_before = !is_torn && (snapshot.done == "file: commit" || number.is_multiple_of(4));
        match as_before {
            true => self.scenario.play(&data, snapshot.act).await,
            false => self.scenario.play_rest_at_once(&data).await,
        }
        let outcome = self.scenario.outcome(&data).await;
        std::fs::remove_dir_all(&data).unwrap();
        let torn = if is_torn { ", torn" } else { "" };
        let what =
            format!("seed {}, dead at {number} ({} {}{torn})", self.seed, snapshot.done, snapshot.table);
        println!("{what}: {:?}", begun.elapsed());
        self.compare(&outcome, &what);
    }

    fn compare(&mut self, found: &TableContents, what: &str) {
        let others = self.expected.iter().filter(|(table, rows)| found[*table] != **rows);
        let said = |(table, rows): (&String, &RecordBatch)| {
            let (here, there) = (found[table].num_rows(), rows.num_rows());
            format!("{what}: {table} differs: {here} rows instead of {there}")
        };
        let others: Vec<String> = others.map(said).collect();
        others.iter().for_each(|difference| println!("{difference}"));
        self.differences.extend(others);
    }
}
