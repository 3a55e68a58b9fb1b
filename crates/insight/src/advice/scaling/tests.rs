use proptest::prelude::*;

use super::*;

fn size(gpus: u32, nodes: u32, local_batch: u32) -> Size {
    Size { gpus, nodes, local_batch }
}

const TRUTH: Pollux = Pollux {
    grad_s: 0.1,
    grad_sample_s: 0.01,
    local_s: 0.05,
    local_gpu_s: 0.002,
    node_s: 0.2,
    node_gpu_s: 0.004,
    overlap: 2.0,
};

fn seen(sizes: impl IntoIterator<Item = Size>) -> Observations {
    let mut observed = Observations::default();
    for size in sizes {
        observed.add(size, TRUTH.step_s(size), 10).unwrap();
    }
    observed
}

fn small() -> impl Iterator<Item = Size> {
    [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (24, 3), (32, 4)]
        .into_iter()
        .flat_map(|(gpus, nodes)| [8, 16, 32].map(|batch| size(gpus, nodes, batch)))
}

#[test]
fn the_form_by_hand() {
    // One GPU: 0.1 + 0.16. Two of a node: sqrt(0.26^2 + 0.05^2).
    assert!((TRUTH.step_s(size(1, 1, 16)) - 0.26).abs() < 1e-12);
    assert!((TRUTH.step_s(size(2, 1, 16)) - (0.26f64.powi(2) + 0.05f64.powi(2)).sqrt()).abs() < 1e-12);
    assert!((TRUTH.step_s(size(10, 2, 16)) - (0.26f64.powi(2) + 0.232f64.powi(2)).sqrt()).abs() < 1e-12);
}

#[test]
fn a_known_curve_is_found_and_extrapolated() {
    let curve = Curve::fit(&seen(small())).unwrap();
    for held_out in [size(6, 1, 16), size(64, 8, 16), size(128, 16, 32)] {
        let truth = f64::from(held_out.gpus * held_out.local_batch) / TRUTH.step_s(held_out);
        let found = curve.throughput(held_out).unwrap();
        assert!((found.value / truth - 1.0).abs() < 0.03, "{held_out:?}: {found:?}, {truth}");
        assert!(found.low < truth && truth < found.high);
    }
    let (one, two) = (size(32, 4, 16), size(64, 8, 16));
    let difference = curve.throughput(two).unwrap().value - curve.throughput(one).unwrap().value;
    assert!((curve.marginal(one, 32, 8).unwrap().value / difference - 1.0).abs() < 1e-9);
}

#[test]
fn few_sizes_fall_back_to_amdahl() {
    let curve = Curve::fit(&seen([size(1, 1, 16), size(4, 1, 16)])).unwrap();
    assert!(matches!(curve.form(), Form::Amdahl(_)));
    let four = curve.throughput(size(4, 1, 16)).unwrap();
    let truth = 64.0 / TRUTH.step_s(size(4, 1, 16));
    assert!((four.value / truth - 1.0).abs() < 0.1, "{four:?} {truth}");
    // One size gives the speed of one GPU and nothing on more, as the interval shows.
    let alone = Curve::fit(&seen([size(1, 1, 16)])).unwrap();
    let (one, eight) = (alone.throughput(size(1, 1, 16)).unwrap(), alone.throughput(size(8, 1, 16)).unwrap());
    assert!(eight.high / eight.low > 2.0 * (one.high / one.low - 1.0) + 1.0);
}

#[test]
fn the_same_again_and_steps_add_up() {
    let observed = seen(small());
    assert_eq!(Curve::fit(&observed).unwrap(), Curve::fit(&observed).unwrap());
    let mut twice = Observations::default();
    twice.add(size(1, 1, 8), 1.0, 1).unwrap();
    twice.add(size(1, 1, 8), 4.0, 1).unwrap();
    let fast = Curve::fit(&twice).unwrap().throughput(size(1, 1, 8)).unwrap().value;
    assert!((fast - 4.0).abs() < 1e-9, "the geometric mean is 2 s");
}

#[test]
fn nonsense_is_refused() {
    let mut observed = Observations::default();
    assert!(observed.add(size(0, 0, 1), 1.0, 1).is_err());
    assert!(observed.add(size(2, 3, 1), 1.0, 1).is_err());
    assert!(observed.add(size(2, 1, 0), 1.0, 1).is_err());
    assert!(observed.add(size(2, 1, 1), f64::NAN, 1).is_err());
    assert!(observed.add(size(2, 1, 1), 1.0, 0).is_err());
    assert!(matches!(Curve::fit(&observed), Err(AdviceError::Empty { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_steps_give_a_finite_curve(steps in prop::collection::vec((1u32..64, 1u32..9, 1u32..512, 1e-6f64..1e6), 1..12)) {
        let mut observed = Observations::default();
        for (gpus, nodes, batch, step) in steps {
            observed.add(size(gpus, nodes.min(gpus), batch), step, 3).unwrap();
        }
        let found = Curve::fit(&observed).unwrap().throughput(size(128, 16, 32)).unwrap();
        prop_assert!(found.value.is_finite() && found.value > 0.0 && found.low <= found.value && found.value <= found.high);
    }
}
