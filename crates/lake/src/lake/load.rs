//! On start: the state of a group, read back from its tables as of the anchor's offset.

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimestampMicrosecondType};
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use super::Lake;
use crate::batch::conform;
use crate::error::Result;
use crate::group::GroupState;
use crate::samples::Recent;
use crate::table::{EVENT, KEY, OFFSET, OPEN, PARTITION};

impl Lake {
    pub(super) async fn load(&self, state: &mut GroupState) -> Result<()> {
        if state.committed == 0 {
            return Ok(());
        }
        let ctx = self.session();
        let raw = &self.stores[&state.raw().spec.name];
        ctx.register_table("raw", raw.provider().await?)?;
        let committed = format!("{PARTITION} = {} AND {OFFSET} < {}", state.partition, state.committed);
        if state.raw().knows_lately {
            // Of all history only what came lately is read: files say which offsets they hold.
            let lately = format!("{committed} AND {OFFSET} >= {}", Recent::horizon(state.committed));
            load_recent(&ctx, &lately, state).await?;
            // Without windows nobody asks how far time has come.
            return match state.group.windowed.is_empty() {
                true => Ok(()),
                false => load_watermarks(&ctx, &lately, state).await,
            };
        }
        load_watermarks(&ctx, &committed, state).await?;
        let mut keys =
            ctx.sql(&format!("SELECT {KEY} FROM raw WHERE {committed}")).await?.execute_stream().await?;
        while let Some(batch) = keys.next().await {
            batch?
                .column(0)
                .as_primitive::<Int64Type>()
                .iter()
                .flatten()
                .for_each(|key| state.remember_key(key));
        }
        let mut keyed: Vec<_> = state.group.stored_keyed().collect();
        let Some(anchor) = keyed.pop() else { return Ok(()) };
        ctx.register_table("anchor", self.stores[&anchor.spec.name].provider().await?)?;
        let here = format!("{PARTITION} = {} AND {OPEN}", state.partition);
        let mut open = format!("{KEY} IN (SELECT {KEY} FROM anchor WHERE {here})");
        // Not every key has rows in the anchor: of a pod there are only devices that it held.
        // Another table may be ahead of the anchor, and a key be open there that was sealed before:
        // then its events come once more, and bring it back.
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
            state.revive(conform(&batch, &state.raw().spec.full_schema())?, true);
        }
        Ok(())
    }
}

/// Remembers up to when each cluster was observed, as [`crate::raw::Facts::observed`] says.
async fn load_watermarks(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let is_entered = state.raw().spec.columns.iter().any(|column| column.name == "entered_time");
    let observed = if is_entered { "least(event_time, entered_time)" } else { "event_time" };
    let sql = format!("SELECT cluster, max({observed}) AS at FROM raw WHERE {rows} GROUP BY cluster");
    for batch in ctx.sql(&sql).await?.collect().await? {
        let clusters = cast(batch.column(0), &DataType::Utf8View)?;
        let times = batch.column(1).as_primitive::<TimestampMicrosecondType>();
        for (cluster, time) in clusters.as_string_view().iter().zip(times) {
            state.remember_watermark(cluster.unwrap_or_default(), time.unwrap_or(i64::MIN));
        }
    }
    Ok(())
}

/// Remembers which batches of samples, or events, came lately.
async fn load_recent(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let sql = format!("SELECT {OFFSET}, {KEY}, {EVENT} FROM raw WHERE {rows}");
    let mut stream = ctx.sql(&sql).await?.execute_stream().await?;
    let mut batches = Vec::new();
    while let Some(rows) = stream.next().await {
        let rows = rows?;
        let [offsets, keys, events] =
            [0, 1, 2].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
        for ((offset, key), event) in offsets.iter().zip(keys).zip(events) {
            let batch = (*offset as u64, (*key, *event));
            // The rows of a device in a batch follow each other.
            if batches.last() != Some(&batch) {
                batches.push(batch);
            }
        }
    }
    state.remember_lately(batches);
    Ok(())
}
