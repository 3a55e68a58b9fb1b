//! Mapping files: the built-in ones on rows of their own, a user's own, and invalid ones.

use crate::support::{Imported, gpu_ms, run, text};
use tidegate_events::{Event, v1};
use tidegate_import::{ImportError, ImportOptions, Mapping, MappingError, import};
use tidegate_readings::Metric;

/// A small file for each built-in mapping, with the number of its events beside dead letters and
/// heartbeats.
const SAMPLES: &[(&str, &str, usize)] = &[
    (
        "alibaba_openb_nodes",
        "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,96000,1024,0,\n",
        2,
    ),
    (
        "alibaba_openb_pods",
        "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
         p1,1,460,,LS,Running,10,1010,10.0\np2,1,1000,T4,BE,Pending,20,30,\n",
        5,
    ),
    (
        "dcgm_long",
        "cluster,timestamp,metric,value,Hostname,gpu,UUID\nab,1704067200,DCGM_FI_DEV_GPU_UTIL,5,n1,0,GPU-1\n\
         ab,1704067200,DCGM_FI_DEV_GPU_TEMP,30,n1,0,GPU-1\nab,1704070800,DCGM_FI_DEV_GPU_UTIL,5,n1,0,GPU-1\n",
        2,
    ),
    (
        "faults_csv",
        "cluster,time,node,gpu_uuid,xid,end_time\nab,1704067200,n1,GPU-1,79,\nab,1704067200,n1,,,1704067260\n",
        3,
    ),
    ("gpu_samples_csv", "cluster,time,node,gpu_uuid,power_mw\nab,1704067200,n1,GPU-1,300000\n", 1),
    (
        "helios_earth_vc_1min",
        "time,vc,total_gpu_num,running_gpu_num,pending_gpu_num,running_job_num,pending_job_num\n\
         2020-05-01 00:00:00,vc1,64,0,8,0,1\n2020-05-01 00:01:00,vc1,64,8,0,1,0\n",
        2,
    ),
    (
        "helios_vc_gpus_daily",
        "cluster,date,vc,gpus\nVenus,2020-04-01,total,1000\nVenus,2020-04-01,vc1,8\n",
        2,
    ),
    ("jobs_csv", "job_id,gpus,submit_time,start_time,end_time\n1,2,1704067200,1704067200,1704067260\n", 3),
    (
        "mit_supercloud_slurm_sample",
        "id_job,id_array_task,id_user,partition,gpus_req,gpus_alloc,nodelist,nodes_alloc,timelimit,state,exit_code,\
         priority,time_submit,time_eligible,time_start,time_end\n\
         7,4294967294,3,normal,2,2,\"['r1', 'r2']\",2,4294967295,5,256,9,1612000000,1612000005,1612000010,1612000020\n",
        5,
    ),
    ("ms_itp_jobs", "cluster,job_id,submission_time,duration,num_gpu\n01,a,0,100,8\n", 3),
    ("philly_jobs", "src_row,timestamp,duration,num_gpus,cluster\n5,2017-10-01 00:00:00,10.5,4,ab\n", 3),
    (
        "philly_multigpu_attempts",
        "id,num_gpus,submitted_time,attempt,n_attempts,start_time,end_time,cluster\n\
         x,4,2017-10-01 00:00:00,0,2,2017-10-01 00:01:00,2017-10-01 00:02:00,ab\n\
         x,4,2017-10-01 00:00:00,1,2,2017-10-01 00:03:00,2017-10-01 00:04:00,ab\n",
        6,
    ),
    (
        "sacct",
        "JobID|Submit|Start|End|State|AllocTRES\n\
         1|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:01:00|COMPLETED|gres/gpu=1\n",
        3,
    ),
    (
        "stepfun_node_faults",
        "node_id,fault_start_day,fault_end_day,level,class,desc\nn,1.5,2.5,L1,GPU,xid\nn,3.25,3.25,L1,GPU,xid\n",
        4,
    ),
];

fn events(name: &str) -> Vec<Event> {
    let (_, content, _) = SAMPLES.iter().find(|(sample, ..)| *sample == name).unwrap();
    let (log, summary) = run(text("x.csv", *content), &Mapping::load(name).unwrap()).unwrap();
    assert_eq!(summary.rejected(), 0, "{name}: {:?}", log.dead_letters());
    let all = ["jobs", "capacity", "nodes", "gpu-samples"].into_iter().flat_map(|topic| log.events(topic));
    all.filter(|event| !matches!(event, Event::Job(job) if job.kind() == v1::JobEventKind::Observed))
        .collect()
}

fn jobs(name: &str) -> Vec<v1::JobEvent> {
    let jobs = events(name).into_iter().map(|event| match event {
        Event::Job(job) => job,
        other => panic!("not a job event: {other:?}"),
    });
    jobs.collect()
}

#[test]
fn every_shipped_mapping_reads_its_sample() {
    assert!(Mapping::shipped().eq(SAMPLES.iter().map(|(name, ..)| *name)));
    for (name, _, count) in SAMPLES {
        assert_eq!(events(name).len(), *count, "{name}");
        let mapping = Mapping::load(name).unwrap();
        assert_eq!(mapping.name, *name);
        assert!(
            !mapping.assumptions.is_empty() && !mapping.doc.is_empty() && !mapping.source.is_empty(),
            "{name}"
        );
    }
}

#[test]
fn gpu_time_is_exact_to_the_thousandth() {
    assert_eq!(gpu_ms(&jobs("alibaba_openb_pods")), 460 * 1000);
    assert_eq!(gpu_ms(&jobs("ms_itp_jobs")), 800 * 1000);
    assert_eq!(gpu_ms(&jobs("philly_jobs")), 42 * 1000);
    assert_eq!(gpu_ms(&jobs("mit_supercloud_slurm_sample")), 20 * 1000);
}

#[test]
fn attempts_followed_by_another_are_requeued() {
    let jobs = jobs("philly_multigpu_attempts");
    let ends = jobs.iter().filter(|job| job.kind() == v1::JobEventKind::Ended);
    let states: Vec<_> = ends.map(|job| (job.attempt_id, job.final_state.as_deref())).collect();
    assert_eq!(states, [(Some(0), Some("REQUEUED")), (Some(1), Some("UNKNOWN"))]);
}

#[test]
fn codes_units_and_null_markers_are_parsed() {
    let jobs = jobs("mit_supercloud_slurm_sample");
    let submitted = &jobs[0];
    assert_eq!(
        (submitted.job_id.as_str(), submitted.array_task_id, submitted.time_limit_ms),
        ("7@1612000000", None, None)
    );
    let ended = jobs.iter().find(|job| job.kind() == v1::JobEventKind::Ended).unwrap();
    assert_eq!(
        (ended.final_state.as_deref(), ended.exit_code, ended.exit_signal),
        (Some("FAILED"), Some(1), None)
    );
    let started = jobs.iter().find(|job| job.kind() == v1::JobEventKind::Started).unwrap();
    assert_eq!((started.nodes.as_deref(), started.node_count), (Some("r1,r2"), Some(2)));
}

#[test]
fn the_cluster_option_overrides_the_file_and_the_default() {
    for name in ["ms_itp_jobs", "philly_jobs", "sacct"] {
        let (_, content, _) = SAMPLES.iter().find(|(sample, ..)| *sample == name).unwrap();
        let log = crate::support::MemoryLog::default();
        let options = ImportOptions { cluster: Some("mine".into()), ..ImportOptions::default() };
        let summary =
            import(text("x", *content), &Mapping::load(name).unwrap(), &options, &log, &mut |_| {}).unwrap();
        assert!(summary.clusters.keys().eq(["mine"]), "{name}");
    }
}

const OWN: &str = r#"
name = "ours"
doc = "Our scheduler's export."
kind = "jobs"
source = "us"
final_state = "COMPLETED"

[time]
zone = "Europe/Berlin"

[columns]
job_id = { template = "{queue}-{nr}" }
team = { value = "everybody" }
gpus = { sum = ["small", "large"], unit = "gpus_milli" }
submit_time = { column = "in", format = "epoch_ms" }
start_time = "from"
end_time = { column = "from", plus = "hours", plus_unit = "h" }

[[skip]]
column = "queue"
values = ["test"]
"#;

#[test]
fn a_users_mapping_is_loaded_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours.toml");
    std::fs::write(&path, OWN).unwrap();
    let mapping = Mapping::load(path.to_str().unwrap()).unwrap();
    let content = "queue,nr,small,large,in,from,hours\nq,1,250,500,1704063600000,2024-01-01T01:00:00,0.5\ntest,2,0,0,0,x,0\n";
    let error = run(text("x", content), &mapping).unwrap_err();
    assert!(matches!(error, ImportError::NoCluster { .. }), "{error}");
    let log = crate::support::MemoryLog::default();
    let options = ImportOptions { cluster: Some("c".into()), ..ImportOptions::default() };
    let summary = import(text("x", content), &mapping, &options, &log, &mut |_| {}).unwrap();
    assert_eq!((summary.rows_read, summary.rows_accepted, summary.rows_skipped), (2, 1, 1));
    assert_eq!((log.jobs()[0].job_id.as_str(), log.jobs()[0].team.as_deref()), ("q-1", Some("everybody")));
    assert_eq!(gpu_ms(&log.jobs()), 750 * 1800);
}

#[test]
fn errors_in_a_mapping_say_what_would_be_right() {
    let cases = [
        ("name = \"ours\"", "name = \"o u r s\"", &["name", "letters"][..]),
        ("kind = \"jobs\"", "kind = \"job\"", &["kind", "pool_samples"]),
        ("zone = \"Europe/Berlin\"", "zone = \"Berlin\"", &["time.zone", "IANA"]),
        ("team =", "tema =", &["columns.tema", "user_name"]),
        ("final_state = \"COMPLETED\"", "final_state = \"DONE\"", &["final_state", "COMPLETED"]),
        ("plus_unit = \"h\"", "plus_unit = \"gpus\"", &["columns.end_time", "ms, s, min"]),
        (", plus_unit = \"h\"", "", &["columns.end_time", "plus_unit"]),
        ("unit = \"gpus_milli\"", "unit = \"weeks\"", &["weeks", "gpus_milli"]),
        ("unit = \"gpus_milli\"", "unit = \"h\"", &["columns.gpus", "unit"]),
        (
            "submit_time = { column = \"in\",",
            "submit_time = { template = \"{in}\",",
            &["columns.submit_time", "template"],
        ),
        (
            "team = { value = \"everybody\" }",
            "team = { value = \"x\", column = \"y\" }",
            &["columns.team", "exactly one"],
        ),
        ("team = { value = \"everybody\" }", "team = { colum = \"y\" }", &["colum", "template"]),
        (
            "team = { value = \"everybody\" }",
            "team = { column = \"y\", decode = \"slurm_job_id\" }",
            &["columns.team", "job_id"],
        ),
        ("start_time = \"from\"", "start_time = 5", &["start_time", "column name or a table"]),
        ("job_id = { template = \"{queue}-{nr}\" }", "", &["columns.job_id", "required"]),
    ];
    for (right, wrong, words) in cases {
        assert!(OWN.contains(right), "{right}");
        let message = Mapping::parse(&OWN.replace(right, wrong), "ours.toml").unwrap_err().to_string();
        assert!(message.contains("ours.toml"), "{message}");
        for word in words {
            assert!(message.contains(word), "{wrong}: {message} lacks {word}");
        }
    }
    let error = Mapping::load("philly").unwrap_err();
    assert!(
        matches!(error, MappingError::Unknown { .. }) && error.to_string().contains("philly_jobs"),
        "{error}"
    );
    assert!(matches!(Mapping::load("absent.toml"), Err(MappingError::Read { .. })));
}

#[test]
fn the_guide_shows_a_valid_mapping_and_names_every_field() {
    let guide = include_str!("../../../../schemas/imports/README.md");
    let example = guide.split("```").nth(1).and_then(|block| block.strip_prefix("toml")).unwrap();
    assert_eq!(Mapping::parse(example, "README.md").unwrap().name, "ours");
    for kind in ["jobs", "quotas", "pool_samples", "nodes", "node_faults", "gpu_samples"] {
        let unknown = format!("name = 'x'\ndoc = ''\nkind = '{kind}'\nsource = ''\n[columns]\nodd = 'x'\n");
        let message = Mapping::parse(&unknown, "x").unwrap_err().to_string();
        let allowed = message.split("allowed are ").nth(1).unwrap();
        let row = guide.lines().find(|line| line.starts_with(&format!("| `{kind}` |"))).unwrap();
        // Of metrics the row says that they are the columns of `gpu_samples`.
        let is_metric = |field: &&str| Metric::ALL.iter().any(|metric| metric.name() == *field);
        for field in allowed.split(", ").filter(|field| !is_metric(field)) {
            assert!(row.contains(field), "the guide's row of {kind} lacks {field}");
        }
    }
}
