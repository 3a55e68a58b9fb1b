//! TLS, in builds with the feature `kafka-tls`:
//!
//! `cargo test -p tidegate-log --features kafka-tls --test kafka tls`

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tidegate_log::{EventLog, KafkaLog, KafkaOptions, LogError};
use tidegate_testing::conformance::{batch, read_all};

use crate::broker::{self, Cluster};
use crate::wire::{ONE_PARTITION, at};

const WITH_TLS: &str = "
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SSL://127.0.0.1:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PKCS12
ssl.keystore.location={dir}/broker.p12
ssl.keystore.password=secret
";

/// A key for 127.0.0.1 in `broker.p12`, and its certificate, which signs itself, in `ca.pem`.
fn make_certificate(dir: &Path) {
    let keytool = |arguments: &[&str]| {
        let store = ["-keystore", "broker.p12", "-storepass", "secret", "-alias", "broker"];
        let output = Command::new("keytool").current_dir(dir).args(arguments).args(store).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    let name = ["-dname", "CN=broker", "-ext", "san=ip:127.0.0.1"];
    keytool(&[&["-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12"][..], &name].concat());
    keytool(&["-exportcert", "-rfc", "-file", "ca.pem"]);
}

#[test]
fn brokers_are_reached_over_tls() {
    if !broker::installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_certificate(dir.path());
    let tls = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let properties = WITH_TLS.replace("{tls}", &tls.to_string());
    let _cluster = Cluster::start(1, &properties.replace("{dir}", dir.path().to_str().unwrap()));
    let mut options = KafkaOptions::new(format!("kafka://127.0.0.1:{tls}/tls").parse().unwrap());
    options.timeout = Duration::from_secs(20);
    options.properties.insert("security.protocol".into(), "ssl".into());
    let stranger = KafkaLog::open(options.clone()).unwrap_err();
    println!("{stranger}");
    assert!(matches!(stranger, LogError::KafkaRefused { .. }), "{stranger:?}");
    assert!(stranger.to_string().contains("ssl.ca.location"), "{stranger}");

    options.properties.insert("ssl.ca.location".into(), dir.path().join("ca.pem").to_str().unwrap().into());
    let log = KafkaLog::open(options).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    log.append(&at("jobs"), batch("a", 0, 0, 100)).unwrap();
    assert_eq!(read_all(&log, &at("jobs")).len(), 100);
}
