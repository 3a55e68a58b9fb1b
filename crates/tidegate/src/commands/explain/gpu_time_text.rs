//! Prints where the held GPU time of a job went.

use super::format::{duration, hours, money, percent, time};
use super::gpu_time::{Bottleneck, GpuTime, Mfu};
use super::summary::blamed;

pub fn print(held: &GpuTime, gpu_ms_held: i64) {
    ledger(held, gpu_ms_held);
    goodput(held);
    say!("");
    mfu(&held.mfu);
    walls(&held.walls);
    places(held);
}

fn ledger(held: &GpuTime, gpu_ms_held: i64) {
    say!("\nwhere its GPU time went");
    let all = held.gpu_ms();
    // Currencies are never added up.
    let priced: Vec<&str> = held.costs.iter().filter_map(|cost| cost.currency.as_deref()).collect();
    for class in &held.ledger {
        let cost = match (class.cost_micros, priced.as_slice()) {
            (Some(micros), [currency]) => format!("  {:>12} {currency}", money(micros)),
            _ => String::new(),
        };
        say!(
            "  {:<20}  {:>9} GPU-h  {:>7}{cost}",
            class.class,
            hours(class.gpu_ms),
            percent(class.gpu_ms, all)
        );
    }
    // The ledger may be incomplete, or jobs may hold more than there is.
    if (all - gpu_ms_held).abs() * 100 > gpu_ms_held {
        say!("  the ledger has {} of {} GPU-h held", hours(all), hours(gpu_ms_held));
    }
    for cost in &held.costs {
        match (&cost.currency, cost.cost_micros) {
            (Some(currency), Some(micros)) => {
                say!("  cost {} {currency} for {} GPU-h", money(micros), hours(cost.gpu_ms));
            }
            _ => say!("  no price is known for {} GPU-h", hours(cost.gpu_ms)),
        }
    }
}

fn goodput(held: &GpuTime) {
    if held.runs.is_empty() {
        say!("\ngoodput      not known: the job reports no steps");
        return;
    }
    say!("\ngoodput (productive of held), ETTR (productive and stalls of held and waited)");
    for run in &held.runs {
        say!(
            "  run {}: {}  {:>9} GPU-h  goodput {:>7}, ETTR {:>7}; starting {}, redone {}",
            run.run,
            time(&run.from_time),
            hours(run.held_gpu_ms),
            percent(run.productive_gpu_ms, run.held_gpu_ms),
            percent(run.ettr_numerator_gpu_ms, run.held_gpu_ms + run.queued_gpu_ms),
            percent(run.starting_gpu_ms, run.held_gpu_ms),
            percent(run.redone_gpu_ms, run.held_gpu_ms),
        );
    }
    let known = held.goodput.as_ref().and_then(|all| {
        let goodput = percent(all.productive_gpu_ms?, all.held_gpu_ms?);
        Some((goodput, percent(all.ettr_numerator_gpu_ms?, all.ettr_denominator_gpu_ms?)))
    });
    if let Some((goodput, ettr)) = known {
        say!("  all runs: goodput {goodput}, ETTR {ettr}");
    }
}

fn mfu(mfu: &[Mfu]) {
    let Some(longest) = mfu.first() else {
        say!("MFU          not known: the job reports no steps");
        return;
    };
    let Some(ppm) = longest.mfu_ppm else {
        say!("MFU          not known: {}", why_no_mfu(longest));
        return;
    };
    let known = [&longest.flops_convention, &longest.precision, &longest.gpu_model];
    let of: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
    let bound = longest.hfu_bound_ppm.map_or_else(String::new, |bound| {
        format!("; tensor cores were active for no more than {}", percent(bound, 1_000_000))
    });
    let doubt = if longest.is_impossible == Some(1) {
        "; more than the hardware can do: the report is wrong"
    } else {
        ""
    };
    say!("MFU          {} ({}){bound}{doubt}", percent(ppm, 1_000_000), of.join(", "));
}

fn why_no_mfu(mfu: &Mfu) -> String {
    let reason = mfu.reason.as_deref().unwrap_or("its steps took no time");
    let words = match reason {
        "no_flops" => "it tells no operations",
        "no_precision" => "it tells no precision",
        "no_device" => "it does not tell on which devices it runs",
        "no_samples" => "its devices are not sampled, so their model is not known",
        "mig_slice" => "a MIG slice has no peak of its own",
        "unknown_model" => "no peak is known of the model; name one with --peaks",
        "unknown_precision" => "no peak is known of that precision; name one with --peaks",
        _ => return reason.to_owned(),
    };
    let about = mfu.gpu_model.as_ref().map_or_else(String::new, |model| format!(" ({model})"));
    format!("{reason}: {words}{about}")
}

fn walls(walls: &[Bottleneck]) {
    let Some((most, others)) = walls.split_first() else {
        say!("wall         not known: no device and no step of it was reported");
        return;
    };
    let minutes: i64 = walls.iter().map(|wall| wall.minutes).sum();
    let shares = evidence(most);
    let shares = if shares.is_empty() { String::new() } else { format!(": {shares}") };
    say!("wall         {} in {} of {minutes} minutes{shares}", label(most), most.minutes);
    if !others.is_empty() {
        let others: Vec<String> =
            others.iter().take(4).map(|wall| format!("{} {}", label(wall), wall.minutes)).collect();
        say!("             else {}", others.join(", "));
    }
}

fn label(wall: &Bottleneck) -> String {
    match &wall.reason {
        Some(reason) => format!("{} ({reason})", wall.label),
        None => wall.label.clone(),
    }
}

fn evidence(wall: &Bottleneck) -> String {
    let shares = [
        ("SMs active", wall.sm_active_ppm),
        ("tensor cores", wall.tensor_active_ppm),
        ("memory", wall.dram_active_ppm),
        ("PCIe", wall.pcie_ppm),
        ("NVLink", wall.nvlink_ppm),
        ("waiting for input", wall.data_wait_ppm),
        ("in collectives", wall.communication_ppm),
        ("waiting for the slowest rank", wall.imbalance_ppm),
    ];
    let known = shares.into_iter().filter_map(|(what, ppm)| Some((what, ppm?)));
    known.map(|(what, ppm)| format!("{what} {}", percent(ppm, 1_000_000))).collect::<Vec<_>>().join(", ")
}

/// Placement, energy and memory growth.
fn places(held: &GpuTime) {
    if let Some(spread) = &held.spread {
        let counted = |count: Option<i64>, what: &str, whats: &str| match count {
            Some(1) => format!("1 {what}"),
            Some(count) => format!("{count} {whats}"),
            None => format!("{whats} that are not known"),
        };
        let known = match spread.labeled_nodes == spread.node_count {
            true => String::new(),
            false => format!(" (of {} it is known where they stand)", spread.labeled_nodes),
        };
        let (switches, racks) =
            (counted(spread.switches, "switch", "switches"), counted(spread.racks, "rack", "racks"));
        say!("spread       {} nodes at {switches}, in {racks}{known}", spread.node_count);
    }
    if let Some((energy, mj)) = held.energy.as_ref().and_then(|energy| Some((energy, energy.energy_mj?))) {
        let by_token = energy
            .uj_per_token
            .map_or_else(String::new, |uj| format!(", {:.3} J a token", uj as f64 / 1_000_000.0));
        let all = match mj {
            100_000_000.. => format!("{:.2} kWh", mj as f64 / 3_600_000_000.0),
            _ => format!("{:.0} J", mj as f64 / 1_000.0),
        };
        say!("energy       {all} ({}){by_token}", energy.quality);
    }
    for slow in &held.stragglers {
        let lost = slow.lost_gpu_ms.map_or_else(String::new, |ms| format!("; {} GPU-h lost", hours(ms)));
        say!("slow         from {}: {}{lost}", time(&slow.onset_time), blamed(slow));
    }
    for device in &held.memory {
        let place = match (&device.node, device.gpu_index, &device.gpu_uuid) {
            (Some(node), Some(index), _) => format!("GPU {index} of {node}"),
            (.., Some(uuid)) => uuid.clone(),
            _ => "a device".to_owned(),
        };
        let full = match device.time_to_oom_ms {
            Some(ms) => format!("full in {}", duration(ms)),
            None => "was let go of before it was full".to_owned(),
        };
        say!("memory       {place} grows {} MiB an hour, {full}", device.bytes_per_hour >> 20);
    }
}
