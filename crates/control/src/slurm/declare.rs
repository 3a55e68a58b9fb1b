//! Declarations of a job in its comment: whether and how it may be changed.

use tidegate_autopilot::state::GrowBy;

/// A job's declaration: the word `tidegate:…` of its comment (`sbatch --comment`), with options
/// separated by commas.
///
/// | option | meaning |
/// |---|---|
/// | `elastic,min=8,max=32` | its number of GPUs may change within these bounds |
/// | `sizes=8/16/32` | … to these sizes only |
/// | `grow=requeue` | it may be stopped and restarted larger |
/// | `grow=satellites,satellite=/home/ada/join.sh` | one-node jobs may join it, running that script |
/// | `preemptible` | it may be stopped for others |
/// | `notice` | it writes a checkpoint when notified, and acknowledges |
/// | `do-not-disrupt` | it is never touched, whatever else is declared |
///
/// Without `grow` a job never grows. Any option but `do-not-disrupt` opts the job in. A word with
/// an unknown option declares nothing: a typo must not make a job elastic in a way that was not
/// meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Bounds and sizes of an elastic job.
    pub elastic: Option<Elastic>,
    /// It may be stopped for others.
    pub preemptible: bool,
    /// It takes notices before it is disturbed.
    pub notice: bool,
    /// It must not be touched.
    pub do_not_disrupt: bool,
    /// The comment opts the job in.
    pub opt_in: bool,
}

/// Sizes of an elastic job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elastic {
    /// Fewest GPUs.
    pub min_gpus: u32,
    /// Most GPUs.
    pub max_gpus: u32,
    /// Sizes it takes, ascending; empty: whole nodes between the two.
    pub sizes: Vec<u32>,
    /// How it grows.
    pub grow: GrowBy,
    /// Script of its satellites.
    pub satellite: Option<String>,
}

impl Declaration {
    /// Parses a comment.
    pub fn parse(comment: &str) -> Self {
        let words = || comment.split_whitespace().filter_map(|word| word.strip_prefix("tidegate:"));
        let protected = words().flat_map(|word| word.split(',')).any(|option| option == "do-not-disrupt");
        let Some(options) = words().next() else { return Self::default() };
        let mut declared = options_of(options).unwrap_or_default();
        declared.do_not_disrupt |= protected;
        declared
    }
}

/// `None`: it has an unknown option, or contradicts itself.
fn options_of(text: &str) -> Option<Declaration> {
    let mut declared = Declaration { opt_in: true, ..Declaration::default() };
    let (mut elastic, mut least, mut most, mut sizes) = (false, None, None, Vec::new());
    let (mut grow, mut satellite) = (GrowBy::Never, None);
    for option in text.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("elastic", "") => elastic = true,
            ("min", value) => least = Some(value.parse().ok()?),
            ("max", value) => most = Some(value.parse().ok()?),
            ("sizes", value) => {
                sizes = value.split('/').map(|size| size.parse().ok()).collect::<Option<_>>()?
            }
            ("grow", "requeue") => grow = GrowBy::Requeue,
            ("grow", "satellites") => grow = GrowBy::Satellites,
            ("satellite", path) if path.starts_with('/') => satellite = Some(path.to_owned()),
            ("grow", "never") => grow = GrowBy::Never,
            ("preemptible", "") => declared.preemptible = true,
            ("notice", "") => declared.notice = true,
            ("do-not-disrupt", "") => declared.do_not_disrupt = true,
            _ => return None,
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    if elastic {
        let min_gpus = least.or(sizes.first().copied())?;
        let max_gpus = most.or(sizes.last().copied())?;
        let joined = grow == GrowBy::Satellites;
        if min_gpus == 0 || min_gpus > max_gpus || joined != satellite.is_some() {
            return None;
        }
        declared.elastic = Some(Elastic { min_gpus, max_gpus, sizes, grow, satellite });
    }
    Some(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_declare_what_they_spell_and_nothing_else() {
        let declared = Declaration::parse("run 7 tidegate:elastic,min=8,max=32,grow=requeue,notice of bert");
        let elastic =
            Elastic { min_gpus: 8, max_gpus: 32, sizes: vec![], grow: GrowBy::Requeue, satellite: None };
        let expected =
            Declaration { elastic: Some(elastic), notice: true, opt_in: true, ..Declaration::default() };
        assert_eq!(declared, expected);
        let sizes = Declaration::parse("tidegate:elastic,sizes=32/8/16").elastic.unwrap();
        assert_eq!((sizes.min_gpus, sizes.max_gpus, sizes.sizes), (8, 32, vec![8, 16, 32]));
        for nothing in [
            "",
            "elastic",
            "tidegate:elastic,min=8,mx=32",
            "tidegate:elastic,min=9,max=8",
            "tidegate:elastic",
            "tidegate:elastic,min=8,max=16,grow=satellites",
            "tidegate:elastic,min=8,max=16,satellite=/join.sh",
        ] {
            assert_eq!(Declaration::parse(nothing), Declaration::default(), "{nothing}");
        }
        let joined = Declaration::parse("tidegate:elastic,min=8,max=16,grow=satellites,satellite=/join.sh")
            .elastic
            .unwrap();
        assert_eq!((joined.grow, joined.satellite.as_deref()), (GrowBy::Satellites, Some("/join.sh")));
        let both = Declaration::parse("tidegate:elastik,do-not-disrupt");
        assert!(both.do_not_disrupt && !both.opt_in, "hands off holds beside what cannot be read");
    }
}
