//! GPUs in TRES strings (`gres/gpu:a100=4`) and GRES strings (`gpu:h200:2(IDX:0-1)`).

use std::borrow::Cow;

use crate::error::ParseError;
use crate::job_id::numbers;

/// Most indices of a node: lists with more name no devices.
const MAX_INDICES: u64 = 1_024;

/// GPUs of a TRES string.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TresGpus<'a> {
    /// Number of GPUs.
    pub gpus: i64,
    /// Models that the string names, sorted and comma separated; empty if it names none.
    pub models: Cow<'a, str>,
}

impl<'a> TresGpus<'a> {
    /// Parses `cpu=8,gres/gpu=4,gres/gpu:a100=4`. Where both are given, the untyped count is the
    /// total of the typed ones.
    ///
    /// # Errors
    /// A count of GPUs is not a number.
    pub fn parse(text: &'a str) -> Result<Self, ParseError> {
        let (mut untyped, mut typed, mut models) = (None, 0_i64, Cow::Borrowed(""));
        for part in text.split(',') {
            let Some(rest) = part.strip_prefix("gres/gpu") else {
                continue;
            };
            let count =
                rest.rsplit_once('=').and_then(|(name, count)| Some((name, count.parse::<i64>().ok()?)));
            match count {
                Some(("", count)) => untyped = Some(count),
                Some((name, count)) if name.len() > 1 && name.starts_with(':') => {
                    // Beyond what a number holds nothing is known, see `Gpus`.
                    typed = typed.saturating_add(count);
                    models = with_model(models, &name[1..]);
                }
                // gres/gpumem and gres/gpuutil measure usage, not devices.
                _ if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => {}
                _ => {
                    return Err(ParseError::number(format!("{part} is not a GPU count such as gres/gpu=4")));
                }
            }
        }
        Ok(TresGpus { gpus: untyped.unwrap_or(typed), models })
    }

    /// The same with thousandths of a GPU and an owned model.
    pub(crate) fn into_gpus(self) -> Gpus {
        Gpus {
            milli: u64::try_from(self.gpus).ok().and_then(|gpus| gpus.checked_mul(1000)),
            model: (!self.models.is_empty()).then(|| self.models.into_owned()),
        }
    }
}

/// Nearly all jobs have one model: no copy is made then.
fn with_model<'a>(models: Cow<'a, str>, model: &'a str) -> Cow<'a, str> {
    if models.is_empty() {
        return Cow::Borrowed(model);
    }
    let mut names: Vec<_> = models.split(',').chain([model]).collect();
    names.sort_unstable();
    names.dedup();
    Cow::Owned(names.join(","))
}

/// GPUs that a job requests or holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Thousandths of a GPU; `None` if not known.
    pub milli: Option<u64>,
    /// Model, if it is named.
    pub model: Option<String>,
}

/// GPUs of one node, or of a request by the node, the job or the task.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct GresGpus {
    /// Number of GPUs.
    pub count: u64,
    /// Model, if it is named.
    pub model: Option<String>,
    /// Indices of the GPUs on the node, if they are named: Slurm's, in the order of gres.conf.
    pub indices: Vec<u32>,
}

impl GresGpus {
    /// Parses `gpu:h200:2(IDX:0-1),shard:4` of a job's details, `gpu:h200:8(S:0-1)` of a node, or
    /// `gres:gpu:2` of a request. What is not a GPU counts as none.
    pub fn parse(text: &str) -> Self {
        let mut gpus = Self::default();
        for part in parts(text) {
            let part = part.strip_prefix("gres:").or(part.strip_prefix("gres/")).unwrap_or(part);
            let (name, rest) = part.split_once('(').unwrap_or((part, ""));
            let mut fields = name.split(':');
            if fields.next() != Some("gpu") {
                continue;
            }
            // Without a number it is one.
            let (model, count) = match (fields.next(), fields.next()) {
                (Some(model), Some(count)) => (Some(model), count.parse().unwrap_or(0)),
                (Some(field), None) => field.parse().map_or((Some(field), 1), |count: u64| (None, count)),
                (None, _) => (None, 1),
            };
            gpus.count = gpus.count.saturating_add(count);
            gpus.model = gpus.model.take().or(model.map(str::to_owned));
            let indices = rest.trim_end_matches(')').strip_prefix("IDX:").unwrap_or_default();
            // A list that cannot be read names no devices; a node never has more than u32 holds.
            let room = MAX_INDICES - gpus.indices.len() as u64;
            let indices = numbers(indices, room).unwrap_or_default();
            gpus.indices.extend(indices.iter().filter_map(|index| u32::try_from(*index).ok()));
        }
        gpus
    }
}

/// Parts between commas that stand outside of brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ParseErrorKind;

    #[test]
    fn gpus_are_the_untyped_count_or_the_sum_of_the_typed_ones() {
        let cases = [
            ("billing=8,cpu=8,mem=4G,node=1", 0, ""),
            ("gres/gpu=4", 4, ""),
            ("gres/gpu:a100=4,gres/gpu=4", 4, "a100"),
            ("gres/gpu:h100=2,gres/gpu:a100=4", 6, "a100,h100"),
            ("gres/gpu:1g.5gb=3", 3, "1g.5gb"),
            ("gres/gpumem=80G,gres/gpuutil=90,gres/gpu=1", 1, ""),
            ("", 0, ""),
        ];
        for (text, gpus, models) in cases {
            assert_eq!(TresGpus::parse(text), Ok(TresGpus { gpus, models: models.into() }), "{text}");
        }
        for text in ["gres/gpu=x", "gres/gpu", "gres/gpu:=4", "gres/gpu=99999999999999999999"] {
            assert_eq!(TresGpus::parse(text).unwrap_err().kind, ParseErrorKind::Number, "{text}");
        }
    }

    #[test]
    fn devices_of_a_node_have_numbers() {
        let gpus = |count, model: Option<&str>, indices: &[u32]| GresGpus {
            count,
            model: model.map(str::to_owned),
            indices: indices.to_vec(),
        };
        let cases = [
            ("gpu:h200:4(IDX:0-1,6-7)", gpus(4, Some("h200"), &[0, 1, 6, 7])),
            ("gpu:2(IDX:0,3),shard:8(0/4,4/4)", gpus(2, None, &[0, 3])),
            ("gpu:h200:8(S:0-1)", gpus(8, Some("h200"), &[])),
            ("gpu:a100:1(IDX:7),gpu:h200:2(IDX:0-1)", gpus(3, Some("a100"), &[7, 0, 1])),
            ("gres:gpu:h200:2", gpus(2, Some("h200"), &[])),
            ("gres/gpu", gpus(1, None, &[])),
            ("gres:gpu:a100", gpus(1, Some("a100"), &[])),
            ("(null)", gpus(0, None, &[])),
            ("", gpus(0, None, &[])),
        ];
        for (text, expected) in cases {
            assert_eq!(GresGpus::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn sums_beyond_numbers_are_unknown_and_lists_end() {
        let most = format!("gres/gpu:a={0},gres/gpu:b={0}", i64::MAX);
        assert_eq!(TresGpus::parse(&most).unwrap().into_gpus().milli, None);
        assert_eq!(GresGpus::parse(&format!("gpu:{0},gpu:{0}", u64::MAX)).count, u64::MAX);
        let many = "gpu:1(IDX:0-999),".repeat(4_000);
        assert_eq!(GresGpus::parse(&many).indices.len(), 1_000);
    }
}
