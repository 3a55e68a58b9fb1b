//! `tidegate import` of what agents and jobs report, from files: what the tables then say.

use crate::program::{Place, query, run, tidegate};

const EXIT_REJECTS: Option<i32> = Some(3);

/// Imports a file with this content; returns the exit status and the report.
fn import(place: &Place, arguments: &[&str], content: &str) -> (Option<i32>, String) {
    let file = place.data().with_extension("import");
    std::fs::write(&file, content).unwrap();
    let mut command = tidegate();
    command.args(["import", arguments[0]]).arg(&file).args(&arguments[1..]).arg("--data").arg(place.data());
    let done = run(&mut command);
    (done.status, format!("{}{}", done.stdout, done.stderr))
}

#[test]
fn samples_steps_and_faults_of_files_are_in_the_tables() {
    let place = Place::new();
    let samples = "timestamp,metric,value,Hostname,gpu,UUID\n\
        2026-10-01T00:00:00Z,DCGM_FI_DEV_GPU_UTIL,97,n1,0,GPU-1\n\
        2026-10-01T00:00:00Z,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION,1000,n1,0,GPU-1\n\
        2026-10-01T00:01:00Z,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION,37000,n1,0,GPU-1\n\
        2026-10-01T00:01:00Z,fan_speed,1,n1,0,GPU-1\n";
    let arguments = ["samples", "--map", "dcgm_long", "--cluster", "c"];
    let (status, said) = import(&place, &arguments, samples);
    assert!(status == EXIT_REJECTS && said.contains("UNKNOWN_METRIC"), "{said}");
    let minutes = "SELECT window_start, gpu_util_us, energy_mj, us_sampled FROM gpu_1m ORDER BY 1";
    let expected = "window_start,gpu_util_us,energy_mj,us_sampled\n\
        2026-10-01T00:00:00Z,58200000,,60000000\n2026-10-01T00:01:00Z,,36000,60000000\n";
    assert_eq!(query(&place.data(), minutes), expected);

    // The same as pages of the exporter, with what else is in them.
    let pages = "# 2026-10-01T00:00:00Z\n# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"n1\"} 97\n\
        DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"n1\"} 1000\n\
        DCGM_FI_DRIVER_VERSION{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"n1\"} 1\ngo_threads 9\n\
        # 1790812860\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"GPU-1\",Hostname=\"n1\",gpu=\"0\"} 37000\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"0\" 97\n";
    let again = Place::new();
    let arguments = ["samples", "--format", "dcgm-text", "--cluster", "c"];
    let (status, said) = import(&again, &arguments, pages);
    assert!(status == EXIT_REJECTS && said.contains("BAD_SERIES"), "{said}");
    assert_eq!(query(&again.data(), minutes), expected);
    let (status, said) = import(&again, &["samples", "--cluster", "c"], pages);
    assert!(status == Some(2) && said.contains("--map"), "{said}");

    let step = r#"{"job":"4711","rank":0,"step":5,"start":1790812800.5,"duration_s":1}"#;
    let (status, said) =
        import(&place, &["steps", "--cluster", "c", "--node", "n1"], &format!("{step}\n[]\n"));
    assert!(status == EXIT_REJECTS && said.contains("BAD_REPORT"), "{said}");
    let steps = query(&place.data(), "SELECT job_id, node, step, duration_us FROM steps");
    assert_eq!(steps, "job_id,node,step,duration_us\n4711,n1,5,1000000\n");

    let faults = "time,node,gpu_uuid,xid\n2026-10-01T00:00:00Z,n1,GPU-1,79\n";
    let (status, said) = import(&place, &["faults", "--cluster", "c"], faults);
    assert_eq!(status, Some(0), "{said}");
    let xids = query(&place.data(), "SELECT node, gpu_uuid, xid, name FROM xids");
    assert!(xids.starts_with("node,gpu_uuid,xid,name\nn1,GPU-1,79,"), "{xids}");
}

#[test]
fn a_mapping_of_another_kind_is_refused_by_name() {
    let place = Place::new();
    for (what, map, expected) in [
        ("samples", "jobs_csv", "is not of samples"),
        ("faults", "dcgm_long", "is not of faults"),
        ("samples", "none", "no mapping named none"),
    ] {
        let (status, said) = import(&place, &[what, "--map", map, "--cluster", "c"], "a\n");
        assert!(status == Some(1) && said.contains(expected), "{status:?} {said}");
    }
}
