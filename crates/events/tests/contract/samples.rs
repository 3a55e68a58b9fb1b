//! One event of each schema with every field filled in: the source of new fixtures.

use tidegate_events::{Event, SchemaId, v1};
use v1::gpu_sample_batch::{Column, DeviceInfo, Missing, MissingReason, Process, process};

pub fn full_event(schema: SchemaId) -> Event {
    let envelope = Some(v1::Envelope {
        event_id: Vec::new(),
        cluster: "prod-h100".into(),
        source: "slurmctld@head-1".into(),
        epoch: 1_763_000_000_123,
        seq: 42,
        event_time_ms: 1_763_712_000_500,
        observed_time_ms: 1_763_712_001_750,
    });
    match schema {
        SchemaId::JobEvent => Event::Job(job(envelope)),
        SchemaId::CapacityEvent => Event::Capacity(v1::CapacityEvent {
            envelope,
            kind: v1::CapacityEventKind::ReservationSet.into(),
            owner: "vc-vision".into(),
            pool: Some("h100".into()),
            gpu_model: Some("NVIDIA H100 80GB HBM3".into()),
            gpus_milli: Some(64_000),
            name: Some("night-loan".into()),
            start_ms: Some(1_763_712_000_000),
            end_ms: Some(1_763_755_200_000),
            nodes: Some("h100-017,h100-018".into()),
            accounts: Some("vision,speech".into()),
            users: Some("alice".into()),
            flags: Some("FLEX,PURGE_COMP".into()),
            state: Some("ACTIVE".into()),
        }),
        SchemaId::PoolSample => Event::PoolSample(v1::PoolSample {
            envelope,
            owner: "vc-vision".into(),
            pool: Some("h100".into()),
            interval_ms: 60_000,
            quota_gpus_milli: Some(64_000),
            held_gpus_milli: Some(58_500),
            queued_gpus_milli: Some(24_000),
            running_jobs: Some(17),
            pending_jobs: Some(3),
        }),
        SchemaId::NodeEvent => Event::Node(v1::NodeEvent {
            envelope,
            kind: v1::NodeEventKind::FaultStarted.into(),
            node: "h100-017".into(),
            pool: Some("h100".into()),
            gpu_model: Some("NVIDIA H100 80GB HBM3".into()),
            gpus_milli: Some(8_000),
            cpus_milli: Some(192_000),
            memory_bytes: Some(2_164_663_517_184),
            fault_id: Some("xid79-0042".into()),
            fault_level: Some("fatal".into()),
            fault_class: Some("gpu".into()),
            description: Some("GPU has fallen off the bus".into()),
            gpu_uuid: Some("GPU-5d3f3c1e-0000-4000-8000-000000000001".into()),
            mig_uuid: Some("MIG-0f5c0d4a-0000-4000-8000-000000000001".into()),
            gpu_index: Some(1),
            pci_bus_id: Some("00000000:17:00.0".into()),
            xid: Some(79),
            pid: Some(48_211),
            amount_ms: Some(-3_600_000),
            count: Some(12),
            state: Some("DRAIN".into()),
            reason: Some("xid 79".into()),
            driver_version: Some("580.82.07".into()),
            boot_id: Some("2f0ad4d6-53a5-4d5a-9a4e-7a1f4a0f3c11".into()),
            evidence: Some("nvml,kmsg".into()),
            program_version: Some("0.1.0".into()),
        }),
        SchemaId::DeadLetter => Event::DeadLetter(v1::DeadLetter {
            envelope,
            origin: "sacct.txt".into(),
            line: Some(1_204),
            partition: Some(3),
            offset: Some(88_001),
            code: "END_BEFORE_START".into(),
            reason: "End is before Start; export the row again or correct the clock of the node".into(),
            raw: b"4711|alice|2025-11-21T10:00:00|2025-11-21T09:00:00".to_vec(),
        }),
        SchemaId::GpuSampleBatch => Event::GpuSamples(gpu_samples(envelope)),
        SchemaId::StepReport => Event::Step(step(envelope)),
    }
}

fn job(envelope: Option<v1::Envelope>) -> v1::JobEvent {
    v1::JobEvent {
        envelope,
        kind: v1::JobEventKind::Ended.into(),
        job_id: "4711_3".into(),
        attempt_id: Some(-1),
        step_id: Some("batch".into()),
        array_job_id: Some("4711".into()),
        array_task_id: Some(3),
        team: Some("vision".into()),
        user_name: Some("alice".into()),
        pool: Some("h100".into()),
        qos: Some("high".into()),
        job_name: Some("pretrain-7b".into()),
        gpus_milli: Some(16_000),
        gpu_model: Some("NVIDIA H100 80GB HBM3".into()),
        nodes: Some("h100-017,h100-018".into()),
        node_count: Some(2),
        time_limit_ms: Some(86_400_000),
        reason: Some("Resources".into()),
        final_state: Some("CANCELLED".into()),
        cancelled_by: Some("1001".into()),
        exit_code: Some(-2),
        exit_signal: Some(15),
        priority: Some(4_294_901_757),
        hold_id: Some("h100-017/2f0ad4d6/7".into()),
        node: Some("h100-017".into()),
        gpu_uuid: Some("GPU-5d3f3c1e-0000-4000-8000-000000000001".into()),
        mig_uuid: Some("MIG-0f5c0d4a-0000-4000-8000-000000000001".into()),
        gpu_index: Some(1),
        hold_quality: Some("SHARED_ESTIMATED".into()),
        hold_evidence: Some("cgroup".into()),
        share_milli: Some(500),
    }
}

/// Two devices, three ticks, a column with and one without unread values.
fn gpu_samples(envelope: Option<v1::Envelope>) -> v1::GpuSampleBatch {
    let device = |index: u32, mig_uuid: Option<&str>| DeviceInfo {
        uuid: format!("GPU-5d3f3c1e-0000-4000-8000-00000000000{index}"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        mig_uuid: mig_uuid.map(str::to_owned),
    };
    let stale = Missing { first: 4, count: 2, reason: MissingReason::Stale.into() };
    let column = |name: &str, value_delta: [i64; 6], missing, first_growth| Column {
        name: name.into(),
        value_delta: value_delta.to_vec(),
        missing,
        first_growth,
    };
    v1::GpuSampleBatch {
        envelope,
        node: "h100-017".into(),
        devices: vec![device(0, None), device(1, Some("MIG-0f5c0d4a-0000-4000-8000-000000000001"))],
        first_tick_ms: 1_763_712_000_500,
        tick_delta_ms: vec![1_000, 1_003],
        columns: vec![
            column("sm_active_ppm", [912_345, -1_200, 350, 0, 0, 0], vec![stale], vec![]),
            column(
                "energy_mj",
                [90_000_000_000_000, 650_120, 649_870, 88_000_000_000_000, 70_000, 70_001],
                vec![],
                vec![649_990, -1],
            ),
        ],
        processes: vec![Process {
            device: 1,
            first_tick: 1,
            last_tick: 2,
            pid: 48_211,
            memory_bytes: Some(71_303_168_000),
            name: Some("python3".into()),
            job_id: Some("4711_3".into()),
            kind: process::Kind::Compute.into(),
        }],
    }
}

fn step(envelope: Option<v1::Envelope>) -> v1::StepReport {
    v1::StepReport {
        envelope,
        job_id: "4711_3".into(),
        attempt_id: Some(1_763_712_000_000),
        rank: 5,
        world_size: Some(16),
        step: 12_001,
        duration_us: 1_204_551,
        compute_us: Some(800_120),
        communication_us: Some(310_400),
        data_wait_us: Some(9_500),
        checkpoint_us: Some(0),
        tokens: Some(65_536),
        model_flops: Some(2_750_000_000_000_000),
        flops_convention: Some("palm".into()),
        precision: Some("bf16".into()),
        loss_ppm: Some(2_187_400),
        node: Some("h100-017".into()),
        gpu_uuid: Some("GPU-5d3f3c1e-0000-4000-8000-000000000001".into()),
        gpu_index: Some(5),
        dropped: Some(3),
    }
}
