//! What a job says of itself in its comment.

use tidegate_autopilot::state::GrowBy;

/// What a job declares by a word `tidegate:…` of its comment (`sbatch --comment`), options
/// separated by commas:
///
/// `elastic,min=8,max=32`: its GPUs may change between these. `sizes=8/16/32`: to these only.
/// `grow=requeue`: it may be stopped and started larger;
/// `grow=satellites,satellite=/home/ada/join.sh`: jobs of one node may join it, from that script
/// (else it never grows). `preemptible`: it may be stopped for others. `notice`: it writes a
/// checkpoint when it is told and says when it has. `do-not-disrupt`: hands off, whatever else is
/// said.
///
/// Whoever writes any of it lets the autopilot change the job, `do-not-disrupt` aside. A word with
/// an option that is not known declares nothing: a spelling mistake must not make a job elastic in
/// another way than was meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// Least and most GPUs, and sizes, of an elastic job.
    pub elastic: Option<Elastic>,
    /// It may be stopped for others.
    pub preemptible: bool,
    /// It takes notices.
    pub notice: bool,
    /// It is not to be touched.
    pub do_not_disrupt: bool,
    /// The comment lets the autopilot change it.
    pub opt_in: bool,
}

/// Sizes of an elastic job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elastic {
    /// Least GPUs.
    pub min_gpus: u32,
    /// Most GPUs.
    pub max_gpus: u32,
    /// Sizes it takes, rising; empty: whole nodes between the two.
    pub sizes: Vec<u32>,
    /// How it is made larger.
    pub grow: GrowBy,
    /// Script of the jobs that join it.
    pub satellite: Option<String>,
}

impl Declared {
    /// What a comment declares.
    pub fn read(comment: &str) -> Self {
        let words = || comment.split_whitespace().filter_map(|word| word.strip_prefix("tidegate:"));
        let protected = words().flat_map(|word| word.split(',')).any(|option| option == "do-not-disrupt");
        let Some(options) = words().next() else { return Self::default() };
        let mut declared = options_of(options).unwrap_or_default();
        declared.do_not_disrupt |= protected;
        declared
    }
}

/// `None`: it holds what nobody knows, or contradicts itself.
fn options_of(text: &str) -> Option<Declared> {
    let mut declared = Declared { opt_in: true, ..Declared::default() };
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
        let declared = Declared::read("run 7 tidegate:elastic,min=8,max=32,grow=requeue,notice of bert");
        let elastic =
            Elastic { min_gpus: 8, max_gpus: 32, sizes: vec![], grow: GrowBy::Requeue, satellite: None };
        let expected = Declared { elastic: Some(elastic), notice: true, opt_in: true, ..Declared::default() };
        assert_eq!(declared, expected);
        let sizes = Declared::read("tidegate:elastic,sizes=32/8/16").elastic.unwrap();
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
            assert_eq!(Declared::read(nothing), Declared::default(), "{nothing}");
        }
        let joined = Declared::read("tidegate:elastic,min=8,max=16,grow=satellites,satellite=/join.sh")
            .elastic
            .unwrap();
        assert_eq!((joined.grow, joined.satellite.as_deref()), (GrowBy::Satellites, Some("/join.sh")));
        let both = Declared::read("tidegate:elastik,do-not-disrupt");
        assert!(both.do_not_disrupt && !both.opt_in, "hands off holds beside what cannot be read");
    }
}
