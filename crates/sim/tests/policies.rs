//! Policies in the same engine: who lends, who waits, who pays; and that the same seed gives the same bytes.

#![allow(clippy::unwrap_used)]

use tidegate_autopilot::policy::Policy;
use tidegate_sim::{
    Backfill, MINUTE_US, Schedule,
    backtest::{Contender, Metric, Setting, backtest, play},
    generate::{Arrivals, Load},
    pilot::{Autopilot, Habits, Lender},
    policy::{Clairvoyant, Gfs, Lyra, Static, fluid_bound_gpu_us},
    target::Control,
};

fn setting(seed: u64) -> Setting {
    // Training is short of GPUs by day: 30 nodes for a load of 250; the service leaves more than half of its own at night.
    let arrivals =
        Arrivals { span_us: 4 * tidegate_sim::DAY_US, load_gpus: 250, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: arrivals.span_us, peak_gpus: 150, ..Load::default() };
    Setting::made_up(30, 20, &arrivals, &load, seed)
}

type Make = Box<dyn Fn(&Setting) -> Contender>;

fn policies() -> Vec<Make> {
    vec![
        Box::new(|_| Static::default().into()),
        Box::new(|_| Static { backfill: Some(100) }.into()),
        Box::new(|_| Lyra::default().into()),
        Box::new(|_| Gfs::default().into()),
        Box::new(|_| Clairvoyant::default().into()),
        Box::new(|_| Contender::Pilot {
            decider: Box::new(Lender::new(1)),
            control: Control::default(),
            habits: Habits::default(),
            schedule: Schedule { backfill: Backfill::Easy { depth: 100 }, ..Schedule::default() },
            every_us: 5 * MINUTE_US,
        }),
        Box::new(|_| Contender::Pilot {
            decider: Box::new(Autopilot::new(Policy::auto(), 1)),
            control: Control::default(),
            habits: Habits::default(),
            schedule: Schedule { backfill: Backfill::Easy { depth: 100 }, ..Schedule::default() },
            every_us: MINUTE_US,
        }),
    ]
}

#[test]
fn lending_does_more_work_and_the_clairvoyant_harms_nobody() {
    let makers = policies();
    let makers: Vec<_> = makers.iter().map(|m| m.as_ref()).collect();
    let rows = backtest(&makers, 0..2, &setting).unwrap();
    for row in &rows {
        println!("{}", row.policy);
        for (metric, value) in Metric::ALL.iter().zip(&row.values) {
            println!("  {metric:?} {:.3} [{:.3} {:.3}]", value.value, value.low, value.high);
        }
    }
    let of = |policy: usize, metric: Metric| rows[policy].values[metric as usize].value;
    for policy in [2, 4] {
        assert!(of(policy, Metric::UsefulGpuHours) > of(0, Metric::UsefulGpuHours) * 1.02);
        assert!(of(policy, Metric::QueueHours) < of(0, Metric::QueueHours) / 1.5);
    }
    assert!(of(6, Metric::UsefulGpuHours) > of(1, Metric::UsefulGpuHours), "so does the product");
    assert!(of(5, Metric::UsefulGpuHours) > of(1, Metric::UsefulGpuHours), "lending through the target pays");
    assert!(of(3, Metric::UsefulGpuHours) > of(0, Metric::UsefulGpuHours));
    assert!(of(1, Metric::QueueHours) < of(0, Metric::QueueHours));
    assert_eq!(of(0, Metric::ActionsPerDay), 0.0);
    for (seed, run) in rows[4].runs.iter().enumerate() {
        let s = setting(seed as u64);
        let bound = fluid_bound_gpu_us(&s.spec, &s.jobs, &s.services, s.span_us);
        assert!(rows.iter().all(|row| row.runs[seed].at_span.useful_gpu_us <= bound), "seed {seed}");
        // Failed nodes aside, whoever knows the future gives every GPU back in time.
        let unmet = (run.at_span.unmet_us, rows[0].runs[seed].at_span.unmet_us);
        assert!(unmet.0 <= unmet.1 + 30 * tidegate_sim::MINUTE_US, "seed {seed}: {unmet:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for make in policies() {
        let s = setting(11);
        assert_eq!(play(&s, make(&s), 1).unwrap(), play(&s, make(&s), 1).unwrap());
    }
}
