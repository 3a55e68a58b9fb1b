//! Scaling curves of job families, as the signals publish them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::pairs;
use tidegate_autopilot::state::{CurvePoint, ScalingCurve};
use tidegate_events::v1;

/// Latest curve of each family and unit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Curves(#[serde(with = "pairs")] BTreeMap<(String, String), CurvePoints>);

/// Points of one published curve, by GPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CurvePoints {
    at_ms: i64,
    #[serde(with = "points")]
    points: BTreeMap<u32, v1::ScalingCurve>,
}

impl Curves {
    /// Takes in one point of a curve published at `at_ms`.
    pub fn point(&mut self, point: &v1::ScalingCurve, at_ms: i64) {
        let new = || CurvePoints { at_ms, points: BTreeMap::new() };
        let latest = self.0.entry((point.family.clone(), point.unit.clone())).or_insert_with(new);
        if at_ms > latest.at_ms {
            *latest = new();
        }
        if at_ms == latest.at_ms {
            latest.points.insert(point.gpus, point.clone());
        }
    }

    /// Curve of a family, in tokens if there is one, else in steps. `None` if it has none, or not
    /// all of its points were read.
    pub fn of(&self, family: &str) -> Option<ScalingCurve> {
        let of = |unit: &str| self.0.get(&(family.to_owned(), unit.to_owned())).and_then(CurvePoints::curve);
        of("TOKENS").or_else(|| of("STEPS"))
    }
}

impl CurvePoints {
    /// Rates relative to one GPU. Beyond the largest size observed the lower bound counts: growth
    /// into the unknown must pay off even there.
    fn curve(&self) -> Option<ScalingCurve> {
        let whole = self.points.values().all(|point| point.points as usize == self.points.len());
        let one = self.points.get(&1).map(|point| point.rate_milli).filter(|rate| whole && *rate > 0)?;
        let most_seen =
            self.points.values().filter(|point| point.seen_steps > 0).map(|point| point.gpus).max()?;
        let points = self.points.values().map(|point| {
            let rate = if point.gpus > most_seen { point.low_milli } else { point.rate_milli };
            let rate_ppm = u128::from(rate) * 1_000_000 / u128::from(one);
            CurvePoint { gpus: point.gpus, rate_ppm: u64::try_from(rate_ppm).unwrap_or(u64::MAX) }
        });
        ScalingCurve::new(points.collect()).ok()
    }
}

/// Points of a curve in a snapshot: Protobuf by GPUs.
mod points {
    use std::collections::BTreeMap;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tidegate_events::v1::ScalingCurve;
    use tidegate_events::{Event, SchemaId};

    pub fn serialize<S: Serializer>(points: &BTreeMap<u32, ScalingCurve>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(
            points.iter().map(|(gpus, point)| (gpus, Event::Scaling(point.clone()).encode_to_vec())),
        )
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, ScalingCurve>, D::Error> {
        let points = BTreeMap::<u32, Vec<u8>>::deserialize(from)?;
        let point = |(gpus, bytes): (u32, Vec<u8>)| match Event::decode_draft(
            SchemaId::ScalingCurve.number(),
            &bytes,
        ) {
            Ok(Event::Scaling(point)) => Ok((gpus, point)),
            _ => Err(D::Error::custom("a point of a scaling curve is not readable")),
        };
        points.into_iter().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Point = (u32, [u64; 2], bool);

    /// Publishes one curve: GPUs, expected rate and lower bound, whether jobs ran at that size.
    fn publish(curves: &mut Curves, (family, unit): (&str, &str), at_ms: i64, of: u32, points: &[Point]) {
        for (gpus, [rate_milli, low_milli], is_seen) in points {
            let point = v1::ScalingCurve {
                family: family.into(),
                unit: unit.into(),
                gpus: *gpus,
                rate_milli: *rate_milli,
                low_milli: *low_milli,
                seen_steps: if *is_seen { 100 } else { 0 },
                points: of,
                ..v1::ScalingCurve::default()
            };
            curves.point(&point, at_ms);
        }
    }

    fn rates(curves: &Curves) -> Option<Vec<(u32, u64)>> {
        let curve = curves.of("train")?;
        Some(curve.points().iter().map(|point| (point.gpus, point.rate_ppm)).collect())
    }

    #[test]
    fn the_newest_whole_curve_counts_and_tokens_go_before_steps() {
        let mut curves = Curves::default();
        let steps = ("train", "STEPS");
        publish(&mut curves, steps, 5, 3, &[(1, [1_000, 900], true), (4, [3_000, 2_800], true)]);
        assert_eq!(rates(&curves), None, "two of three points");
        publish(&mut curves, steps, 5, 3, &[(8, [5_000, 4_000], false)]);
        let lower = Some(vec![(1, 1_000_000), (4, 3_000_000), (8, 4_000_000)]);
        assert_eq!(rates(&curves), lower, "no job ran on eight: the lower bound");
        for (at_ms, four) in [(9, 3_500), (4, 1)] {
            let points = [(1, [1_000; 2], true), (2, [1_900; 2], true), (4, [four; 2], true)];
            publish(&mut curves, steps, at_ms, 3, &points);
        }
        let later = Some(vec![(1, 1_000_000), (2, 1_900_000), (4, 3_500_000)]);
        assert_eq!(rates(&curves), later, "a later curve replaces an earlier one");
        publish(&mut curves, ("train", "TOKENS"), 1, 2, &[(1, [500; 2], true), (4, [1_500; 2], true)]);
        assert_eq!(rates(&curves), Some(vec![(1, 1_000_000), (4, 3_000_000)]));
        assert_eq!(curves.of("other"), None);
    }

    #[test]
    fn without_one_gpu_or_with_nothing_seen_there_is_no_curve() {
        let unusable = [
            [(2, [1_000, 900], true), (4, [1_000, 900], true)],
            [(1, [1_000, 900], false), (4, [1_000, 900], false)],
            [(1, [0, 0], true), (4, [0, 0], true)],
        ];
        for points in unusable {
            let mut curves = Curves::default();
            publish(&mut curves, ("train", "STEPS"), 1, 2, &points);
            assert_eq!(rates(&curves), None, "{points:?}");
        }
    }
}
