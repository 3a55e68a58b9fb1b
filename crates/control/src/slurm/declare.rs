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

    /// What is wrong with the declaration in a comment, for people; `None`: nothing, or it has
    /// none.
    pub fn problem(comment: &str) -> Option<String> {
        let words: Vec<&str> = comment.split_whitespace().collect();
        let declared: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix("tidegate:")).collect();
        let Some(options) = declared.first() else {
            let misspelt =
                |word: &&&str| word.split_once(':').is_some_and(|(before, _)| is_like(before, "tidegate"));
            return words
                .iter()
                .find(misspelt)
                .map(|word| format!("{word:?} declares nothing: write tidegate:…"));
        };
        if let Err(why) = options_of(options) {
            return Some(format!("tidegate:{options} declares nothing: {why}"));
        }
        (declared.len() > 1)
            .then(|| format!("only the first word counts: write tidegate:{} as one", declared.join(",")))
    }
}

/// Options, as people may misspell them.
const OPTIONS: [&str; 9] =
    ["elastic", "min", "max", "sizes", "grow", "satellite", "preemptible", "notice", "do-not-disrupt"];

/// Whether two words differ by one letter that is wrong, missing or too many, or by two that are
/// swapped, and by no more.
fn is_like(word: &str, known: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (word.to_lowercase().chars().collect(), known.chars().collect());
    if a.len().abs_diff(b.len()) > 1 {
        return false;
    }
    let from_start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let from_end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let rest = |letters: &[char]| letters.len().saturating_sub(from_start + from_end);
    match (rest(&a), rest(&b)) {
        (2, 2) => a[from_start] == b[from_start + 1] && a[from_start + 1] == b[from_start],
        (x, y) => x <= 1 && y <= 1,
    }
}

/// An option that is not known, with the one that was likely meant.
fn unknown_option(option: &str) -> String {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    match OPTIONS.into_iter().find(|known| is_like(name, known)) {
        Some(known) if known != name => format!("{option:?} is not an option; is {known} meant?"),
        Some(_) => format!("{option:?} is not a value of {name}"),
        None => format!("{option:?} is not an option; there are {}", OPTIONS.join(", ")),
    }
}

/// # Errors
/// It has an unknown option, or contradicts itself: which, for people.
fn options_of(text: &str) -> Result<Declaration, String> {
    let mut declared = Declaration { opt_in: true, ..Declaration::default() };
    let (mut elastic, mut least, mut most, mut sizes) = (false, None, None, Vec::new());
    let (mut grow, mut satellite) = (GrowBy::Never, None);
    for option in text.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("elastic", "") => elastic = true,
            ("min", value) => least = Some(number(option, value)?),
            ("max", value) => most = Some(number(option, value)?),
            ("sizes", value) => {
                sizes = value.split('/').map(|size| number(option, size)).collect::<Result<_, _>>()?
            }
            ("grow", "requeue") => grow = GrowBy::Requeue,
            ("grow", "satellites") => grow = GrowBy::Satellites,
            ("satellite", path) if path.starts_with('/') => satellite = Some(path.to_owned()),
            ("grow", "never") => grow = GrowBy::Never,
            ("preemptible", "") => declared.preemptible = true,
            ("notice", "") => declared.notice = true,
            ("do-not-disrupt", "") => declared.do_not_disrupt = true,
            _ => return Err(unknown_option(option)),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    if elastic {
        let min_gpus = least.or(sizes.first().copied()).ok_or("elastic needs min= or sizes=")?;
        let max_gpus = most.or(sizes.last().copied()).ok_or("elastic needs max= or sizes=")?;
        if min_gpus == 0 || min_gpus > max_gpus {
            return Err(format!("min={min_gpus} is not 1 to max={max_gpus}"));
        }
        if (grow == GrowBy::Satellites) != satellite.is_some() {
            return Err("grow=satellites and satellite=/PATH go together".to_owned());
        }
        declared.elastic = Some(Elastic { min_gpus, max_gpus, sizes, grow, satellite });
    }
    Ok(declared)
}

fn number(option: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{option:?} has no number of GPUs"))
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
        for (comment, why) in [
            ("tidegate:elastik,min=8,max=16", "is elastic meant?"),
            ("tidegate:elastic,min=8,mx=32", "is max meant?"),
            ("tidegate:elastic,min=9,max=8", "min=9 is not 1 to max=8"),
            ("tidegate:elastic", "needs min="),
            ("tidegate:elastic,min=8,max=lots", "\"max=lots\" has no number"),
            ("tidegate:elastic,min=8,max=16,grow=satellites", "go together"),
            ("tidegate:grow=by-magic", "not a value of grow"),
            ("tidegate:preempitble", "is preemptible meant?"),
            ("tidegate:spot", "there are elastic, min"),
            ("tidgate:notice", "write tidegate:"),
            ("tidegate:notice tidegate:preemptible", "write tidegate:notice,preemptible as one"),
        ] {
            let problem = Declaration::problem(comment).unwrap_or_default();
            assert!(problem.contains(why), "{comment}: {problem}");
        }
        for right in ["", "run 7 of bert", "see https://wiki", "tidegate:elastic,min=8,max=16,notice"] {
            assert_eq!(Declaration::problem(right), None, "{right}");
        }
        let both = Declaration::parse("tidegate:elastik,do-not-disrupt");
        assert!(both.do_not_disrupt && !both.opt_in, "hands off holds beside what cannot be read");
    }
}
