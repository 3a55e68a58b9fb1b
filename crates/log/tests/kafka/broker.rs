//! Brokers: one that all tests share, and clusters whose nodes are killed and started again.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tempfile::TempDir;
use tidegate_log::{EventLog, KafkaLog, KafkaOptions};
use tidegate_testing::needs;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether Kafka can run here; otherwise the test is skipped. The first call downloads what is
/// missing.
pub fn installed() -> bool {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| needs::missing("Kafka", Command::new(script()).arg("install")));
    missing.iter().for_each(|why| needs::skip(why));
    missing.is_none()
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kafka/broker.sh")
}

/// The address of the broker that tests share; `None` where there is no Kafka.
pub fn shared() -> Option<String> {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    installed().then(|| {
        SHARED.get_or_init(|| {
            let cluster = Cluster::start_in(
                env::temp_dir().join(format!("tidegate-kafka-{}", std::process::id())),
                1,
                "",
                true,
            );
            cluster.wait_until_ready();
            cluster
        });
        SHARED.get().unwrap().servers()
    })
}

/// Options for a log of its own on these brokers, with little that a test has to wait for.
pub fn options(servers: &str) -> KafkaOptions {
    static LOGS: AtomicU32 = AtomicU32::new(0);
    let log = LOGS.fetch_add(1, Ordering::Relaxed);
    let url = format!("kafka://{servers}/t{}-{log}", std::process::id());
    let mut options = KafkaOptions::new(url.parse().unwrap());
    options.progress_partitions = 3;
    options
}

/// Brokers that a test may kill.
pub struct Cluster {
    nodes: Vec<Node>,
    /// Ids and ports, as the script wants them.
    layout: String,
    properties: String,
    ports: Vec<u16>,
    _dir: Option<TempDir>,
}

struct Node {
    dir: PathBuf,
    running: Option<(Child, ChildStdin)>,
    remove: bool,
    disk: Option<SmallDisk>,
}

/// A memory file system that only a node sees; it lasts as long as the process that holds its
/// namespace.
pub struct SmallDisk {
    holder: Child,
    at: PathBuf,
}

impl SmallDisk {
    /// `None` where the test may not mount.
    fn mount(at: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let script = r#"mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec cat"#;
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", &bytes.to_string()]).arg(at);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        match said.trim() {
            "mounted" => Some(Self { holder, at: at.to_path_buf() }),
            _ => {
                holder.wait().unwrap();
                None
            }
        }
    }

    /// A file on it, by a path that leads there from outside.
    pub fn path(&self, file: &str) -> PathBuf {
        let inside = self.at.strip_prefix("/").unwrap().join(file);
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().unwrap();
    }
}

impl Cluster {
    pub fn start(nodes: usize, properties: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Self::start_in(dir.path().to_path_buf(), nodes, properties, false);
        cluster._dir = Some(dir);
        cluster.wait_until_ready();
        cluster
    }

    /// One node with its data on a disk of this size; `None` where the test may not mount.
    pub fn start_on_a_small_disk(bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Self::lay_out(dir.path().to_path_buf(), 1, "", false);
        let node = &mut cluster.nodes[0];
        node.disk = Some(SmallDisk::mount(&node.dir, bytes)?);
        cluster._dir = Some(dir);
        cluster.start_node(0);
        cluster.wait_until_ready();
        Some(cluster)
    }

    pub fn disk(&self) -> &SmallDisk {
        self.nodes[0].disk.as_ref().unwrap()
    }

    fn start_in(dir: PathBuf, nodes: usize, properties: &str, remove: bool) -> Self {
        let mut cluster = Self::lay_out(dir, nodes, properties, remove);
        (0..nodes).for_each(|node| cluster.start_node(node));
        cluster
    }

    fn lay_out(dir: PathBuf, nodes: usize, properties: &str, remove: bool) -> Self {
        // All are held until all are known, so that none is given twice.
        let free: Vec<_> = (0..2 * nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let all: Vec<_> = free.iter().map(|port| port.local_addr().unwrap().port()).collect();
        drop(free);
        let layout = all.chunks(2).enumerate().map(|(i, p)| format!("{}:{}:{}", i + 1, p[0], p[1]));
        let layout = layout.collect::<Vec<_>>().join(",");
        let node = |id| Node { dir: dir.join(format!("node-{id}")), running: None, remove, disk: None };
        let ports = all.iter().step_by(2).copied().collect();
        let nodes_of = (1..=nodes).map(node).collect();
        let mut properties = properties.replace("{port}", &all[0].to_string());
        properties = properties.replace("{controller}", &all[1].to_string());
        Self { nodes: nodes_of, layout, properties, ports, _dir: None }
    }

    pub fn servers(&self) -> String {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }

    pub fn start_node(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        std::fs::create_dir_all(&node.dir).unwrap();
        let log =
            std::fs::File::options().create(true).append(true).open(node.dir.join("broker.log")).unwrap();
        let mut command = match &node.disk {
            Some(disk) => {
                let mut inside = Command::new("nsenter");
                inside.arg(format!("--mount=/proc/{}/ns/mnt", disk.holder.id())).arg(script());
                inside
            }
            None => Command::new(script()),
        };
        command.arg("node").arg(&node.dir).args([&(index + 1).to_string(), &self.layout]);
        command
            .env("KAFKA_PROPERTIES", &self.properties)
            .env("KAFKA_REMOVE", if node.remove { "1" } else { "" });
        let mut child =
            command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        node.running = Some((child, stdin));
    }

    /// As by kill -9; returns when it is gone.
    pub fn kill_node(&mut self, index: usize) {
        if let Some((mut child, stdin)) = self.nodes[index].running.take() {
            drop(stdin);
            child.wait().unwrap();
        }
    }

    /// Stops the node with SIGSTOP, as if it were overloaded or unreachable, until it is continued.
    pub fn freeze_node(&self, index: usize) {
        self.signal(index, "-STOP");
    }

    pub fn thaw_node(&self, index: usize) {
        self.signal(index, "-CONT");
    }

    fn signal(&self, index: usize, signal: &str) {
        let pid = self.nodes[index].running.as_ref().unwrap().0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits until the cluster takes records in each partition of a new topic.
    pub fn wait_until_ready(&self) {
        let began = Instant::now();
        loop {
            let mut options = options(&self.servers());
            options.timeout = Duration::from_secs(5);
            options.replication = Some(self.nodes.len().min(3) as u16);
            match KafkaLog::open(options).and_then(|log| log.topics()) {
                Ok(_) => return,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error}\n{}", self.logs()),
            }
        }
    }

    /// Waits until no partition lacks a copy, as after a node was started again.
    pub fn wait_until_in_sync(&self) {
        let client: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", self.servers()).create().unwrap();
        let began = Instant::now();
        loop {
            let in_sync = client.fetch_metadata(None, Duration::from_secs(5)).is_ok_and(|metadata| {
                let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
                partitions.all(|partition| partition.isr().len() == partition.replicas().len())
                    && metadata.brokers().len() == self.nodes.len()
            });
            if in_sync {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the cluster does not get in sync\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn logs(&self) -> String {
        let read = |node: &Node| std::fs::read_to_string(node.dir.join("broker.log")).unwrap_or_default();
        self.nodes.iter().map(read).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.kill_node(node));
    }
}
