//! A catalog is freed, with its rows and lists of files, when its last query ends.

use std::sync::{Arc, Weak};

use datafusion::catalog::TableProvider;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::pipeline::Plan;
use url::Url;

use crate::histories::history;
use crate::long_log::Process;

/// Tables by name, held weakly.
type Watched = Vec<(String, Weak<dyn TableProvider>)>;

fn watched(catalog: &Catalog) -> Watched {
    catalog.tables.iter().map(|(name, table)| (name.clone(), Arc::downgrade(table))).collect()
}

fn alive(tables: &Watched) -> Vec<&str> {
    tables.iter().filter(|(_, table)| table.strong_count() > 0).map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn an_unread_catalog_is_freed() {
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut process = Process::start(&root, &plan).await;
    process.ingest(&history(1, 10));
    let mut lake = process.lake;
    lake.refresh().await.unwrap();

    // A query plans tables and views, and keeps what it reads until it ends.
    let before = watched(&lake.catalog().current());
    let session = engine::session(&engine::runtime(Limits::default()).unwrap(), Limits::default());
    lake.catalog().current().register(&session).unwrap();
    let rows = session.sql("SELECT count(*) FROM pending, jobs").await.unwrap().collect().await.unwrap();
    assert_eq!(rows.len(), 1);
    lake.flush().await.unwrap();
    assert_eq!(alive(&before).len(), before.len());
    drop(session);
    assert_eq!(alive(&before), [""; 0], "after a flush");

    let before = watched(&lake.catalog().current());
    lake.update_joined().await.unwrap();
    assert_eq!(alive(&before), [""; 0], "after joined tables were updated");
    let before = watched(&lake.catalog().current());
    drop(lake);
    assert_eq!(alive(&before), [""; 0], "after the lake was closed");
    let before = watched(&committed_catalog(&root, &plan, Limits::default()).await.unwrap());
    assert_eq!(alive(&before), [""; 0], "opened by a reader");
}
