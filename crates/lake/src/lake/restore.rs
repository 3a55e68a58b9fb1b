//! Restore: reads a group's state back from its tables on start, as of the anchor's offset.

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimestampMicrosecondType};
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use super::Lake;
use crate::batch::conform;
use crate::error::Result;
use crate::state::GroupState;
use crate::state::dedup::DedupWindow;
use crate::table::{EVENT, KEY, OFFSET, OPEN, PARTITION};

impl Lake {
    pub(super) async fn restore(&self, state: &mut GroupState) -> Result<()> {
        if state.committed == 0 {
            return Ok(());
        }
        let ctx = self.session();
        let raw = &self.stores[&state.raw().spec.name];
        ctx.register_table("raw", raw.provider().await?)?;
        let committed = format!("{PARTITION} = {} AND {OFFSET} < {}", state.partition, state.committed);
        if state.raw().has_dedup_window {
            // Only the dedup window is read, not all history: file statistics have the offsets.
            let lately = format!("{committed} AND {OFFSET} >= {}", DedupWindow::horizon(state.committed));
            restore_dedup_window(&ctx, &lately, state).await?;
            // Without windows the watermark is not needed.
            return match state.group.windowed.is_empty() {
                true => Ok(()),
                false => restore_watermarks(&ctx, &lately, state).await,
            };
        }
        restore_watermarks(&ctx, &committed, state).await?;
        let mut keys =
            ctx.sql(&format!("SELECT {KEY} FROM raw WHERE {committed}")).await?.execute_stream().await?;
        while let Some(batch) = keys.next().await {
            batch?
                .column(0)
                .as_primitive::<Int64Type>()
                .iter()
                .flatten()
                .for_each(|key| state.restore_key(key));
        }
        let mut keyed: Vec<_> = state.group.stored_keyed().collect();
        let Some(anchor) = keyed.pop() else { return Ok(()) };
        ctx.register_table("anchor", self.stores[&anchor.spec.name].provider().await?)?;
        let here = format!("{PARTITION} = {} AND {OPEN}", state.partition);
        let mut open = format!("{KEY} IN (SELECT {KEY} FROM anchor WHERE {here})");
        // Not every key has rows in the anchor: a pod has only devices it held. Another table may
        // be ahead of the anchor, and a key open there may have been sealed before. Then its events
        // are absorbed once more, and bring it back.
        for planned in keyed {
            let name = planned.spec.name.as_str();
            ctx.register_table(name, self.stores[name].provider().await?)?;
            open += &format!(
                " OR ({KEY} IN (SELECT {KEY} FROM {name} WHERE {here}) AND {KEY} NOT IN \
                  (SELECT {KEY} FROM raw WHERE {PARTITION} = {} AND {OFFSET} >= {}))",
                state.partition, state.committed
            );
        }
        for batch in
            ctx.sql(&format!("SELECT * FROM raw WHERE {committed} AND ({open})")).await?.collect().await?
        {
            state.restore_open(conform(&batch, &state.raw().spec.full_schema())?);
        }
        Ok(())
    }
}

/// Restores the watermark of each cluster, by the rule of [`crate::raw::facts::Facts::observed`].
async fn restore_watermarks(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let is_entered = state.raw().spec.columns.iter().any(|column| column.name == "entered_time");
    let observed = if is_entered { "least(event_time, entered_time)" } else { "event_time" };
    let sql = format!("SELECT cluster, max({observed}) AS at FROM raw WHERE {rows} GROUP BY cluster");
    for batch in ctx.sql(&sql).await?.collect().await? {
        let clusters = cast(batch.column(0), &DataType::Utf8View)?;
        let times = batch.column(1).as_primitive::<TimestampMicrosecondType>();
        for (cluster, time) in clusters.as_string_view().iter().zip(times) {
            state.restore_watermark(cluster.unwrap_or_default(), time.unwrap_or(i64::MIN));
        }
    }
    Ok(())
}

/// Fills the dedup window with recent events or batches of samples.
async fn restore_dedup_window(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let sql = format!("SELECT {OFFSET}, {KEY}, {EVENT} FROM raw WHERE {rows}");
    let mut stream = ctx.sql(&sql).await?.execute_stream().await?;
    let mut batches = Vec::new();
    while let Some(rows) = stream.next().await {
        let rows = rows?;
        let [offsets, keys, events] =
            [0, 1, 2].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
        for ((offset, key), event) in offsets.iter().zip(keys).zip(events) {
            let batch = (*offset as u64, (*key, *event));
            // The rows of a batch come in runs.
            if batches.last() != Some(&batch) {
                batches.push(batch);
            }
        }
    }
    state.restore_recent(batches);
    Ok(())
}
