//! Which traces are kept: `OTEL_TRACES_SAMPLER` and its argument.

use crate::context::Context;

/// Whether a span is exported, and its children.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// What the caller has decided holds.
    follows_parent: bool,
    /// Decides where no caller has.
    root: Root,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Root {
    All,
    None,
    /// This share of the traces, 0 to 1, by their id: every process keeps the same ones.
    Share(f64),
}

impl Default for Sampler {
    fn default() -> Self {
        Self { follows_parent: true, root: Root::All }
    }
}

impl Sampler {
    /// By its name in the specification.
    ///
    /// # Errors
    /// A sentence if the name is unknown, or the share is none.
    pub fn named(name: &str, argument: Option<&str>) -> Result<Self, String> {
        let root = match name.trim_start_matches("parentbased_") {
            "always_on" => Root::All,
            "always_off" => Root::None,
            "traceidratio" => {
                let share = argument.map_or(Ok(1.0), str::parse::<f64>).ok();
                let share = share.filter(|share| (0.0..=1.0).contains(share));
                Root::Share(share.ok_or("OTEL_TRACES_SAMPLER_ARG is no share between 0 and 1, such as 0.1")?)
            }
            _ => {
                return Err(
                    "OTEL_TRACES_SAMPLER is one of always_on, always_off, traceidratio, and these with \
                            parentbased_ before them"
                        .into(),
                );
            }
        };
        Ok(Self { follows_parent: name.starts_with("parentbased_"), root })
    }

    /// Whether the span of a trace is kept.
    pub fn keeps(&self, trace: &[u8; 16], parent: Option<&Context>) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.sampled;
        }
        match self.root {
            Root::All => true,
            Root::None => false,
            Root::Share(share) => {
                let [.., a, b, c, d, e, f, g, h] = *trace;
                let place = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
                (place as f64) < share * (1_u64 << 63) as f64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_caller_decided_holds_for_those_that_follow_it() {
        let told = |sampled| Context { trace: [1; 16], span: [2; 8], sampled };
        let keeps = |name, parent: Option<Context>| {
            Sampler::named(name, Some("0.5")).unwrap().keeps(&[0x7f; 16], parent.as_ref())
        };
        assert!(Sampler::default().keeps(&[1; 16], None));
        assert!(!Sampler::default().keeps(&[1; 16], Some(&told(false))));
        assert!(keeps("parentbased_always_off", Some(told(true))));
        assert!(!keeps("parentbased_always_off", None));
        assert!(keeps("always_on", Some(told(false))));
        assert!(!keeps("always_off", Some(told(true))));
    }

    #[test]
    fn a_share_of_the_traces_is_kept_by_their_id() {
        let kept = |share: &str| {
            let sampler = Sampler::named("traceidratio", Some(share)).unwrap();
            let traces = (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let trace = |n: u64| [[0; 8], n.to_be_bytes()].concat().try_into().unwrap();
            traces.filter(|n| sampler.keeps(&trace(*n), None)).count()
        };
        assert_eq!((kept("0"), kept("1")), (0, 1000));
        assert!((200..300).contains(&kept("0.25")), "{}", kept("0.25"));
        for wrong in ["2", "-0.1", "NaN", "half"] {
            assert!(Sampler::named("traceidratio", Some(wrong)).is_err(), "{wrong}");
        }
        assert!(Sampler::named("xray", None).unwrap_err().contains("always_on"));
    }
}
