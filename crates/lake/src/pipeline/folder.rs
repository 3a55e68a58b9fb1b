//! Finds the pipeline files of a folder and of the folders in it.

use std::path::{Path, PathBuf};

use crate::error::{LakeError, Result};
use crate::pipeline::definition::Pipeline;

/// Every pipeline file (`*.sql`) of a folder and of all folders in it, sorted by path.
///
/// Files and folders whose names begin with a dot are left out: a Kubernetes ConfigMap shows each
/// file a second time below such a folder.
///
/// # Errors [`LakeError::Io`] if a folder cannot be read, [`LakeError::Pipeline`] if a file does
/// not parse or two files have one name.
pub fn load_folder(folder: &Path) -> Result<Vec<Pipeline>> {
    let mut files = Vec::new();
    collect(folder, &mut Vec::new(), &mut files)?;
    files.sort();
    let mut pipelines: Vec<Pipeline> = Vec::new();
    for file in &files {
        let pipeline = Pipeline::load(file)?;
        if let Some(other) = pipelines.iter().find(|other| other.name == pipeline.name) {
            let message = format!("the name {:?} is taken by {}; choose another", pipeline.name, other.file);
            return Err(LakeError::Pipeline { file: pipeline.file, message });
        }
        pipelines.push(pipeline);
    }
    Ok(pipelines)
}

/// Adds the pipeline files below `folder`. `above` are the real paths of the folders that lead
/// here.
fn collect(folder: &Path, above: &mut Vec<PathBuf>, files: &mut Vec<PathBuf>) -> Result<()> {
    let read = |e| LakeError::Io(format!("read pipelines folder {}", folder.display()), e);
    let real = folder.canonicalize().map_err(read)?;
    if above.contains(&real) {
        return Err(LakeError::Refused(format!(
            "the pipelines folder {} is a link to a folder that holds it; remove the link",
            folder.display()
        )));
    }
    above.push(real);
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        if path.is_dir() {
            collect(&path, above, files)?;
        } else if path.extension().is_some_and(|extension| extension == "sql") {
            files.push(path);
        }
    }
    above.pop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipeline file of this name, which may differ from that of the pipeline.
    fn write(folder: &Path, file: &str, name: &str) {
        let file = folder.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = format!("--! name = \"{name}\"\n--! doc = \"One.\"\n--! sources = []\nSELECT 1 AS n\n");
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn folders_are_searched_in_the_order_of_paths() {
        let folder = tempfile::tempdir().unwrap();
        for (file, name) in [("b.sql", "b"), ("a/y/deep.sql", "deep"), ("c/x.sql", "x"), ("a/z.sql", "z")] {
            write(folder.path(), file, name);
        }
        write(folder.path(), "..data/b.sql", "b");
        write(folder.path(), ".draft.sql", "draft");
        std::fs::write(folder.path().join("a/README.md"), "Not a pipeline.").unwrap();
        let names: Vec<_> = load_folder(folder.path()).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["deep", "z", "b", "x"]);
    }

    #[test]
    fn two_files_with_one_name_are_both_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a/one.sql", "same");
        write(folder.path(), "b/two.sql", "same");
        let refused = load_folder(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("a/one.sql") && refused.contains("b/two.sql"), "{refused}");
    }

    #[test]
    fn a_link_to_a_folder_above_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a/one.sql", "one");
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/round")).unwrap();
        let refused = load_folder(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("a/round is a link to a folder that holds it"), "{refused}");
    }
}
