use proptest::prelude::*;

use super::*;

fn offer(name: &str, fixed: f64, used: f64, limit_gpus: Option<u32>) -> Offer {
    Offer { name: name.to_owned(), fixed, used, limit_gpus, term_hours: 0 }
}

fn gpus(mix: &Mix) -> Vec<(&str, u32)> {
    mix.shares.iter().map(|share| (share.name.as_str(), share.gpus)).collect()
}

/// Cost per hour when GPUs are dispatched in order of use, one by one.
fn dispatched(paths: &[Vec<f64>], offers: &[Offer], sizes: &[u32]) -> f64 {
    let hours: Vec<f64> = paths.concat();
    let hour = |demand: f64| {
        let mut left = demand;
        let mut cost = 0.0;
        for (offer, &size) in offers.iter().zip(sizes) {
            let served = left.min(f64::from(size));
            cost += offer.fixed * f64::from(size) + offer.used * served;
            left -= served;
        }
        if left > 1e-9 { f64::INFINITY } else { cost }
    };
    hours.iter().map(|&demand| hour(demand)).sum::<f64>() / hours.len() as f64
}

#[test]
fn each_gpu_goes_where_its_use_is_cheapest() {
    // Unit k of 10 is busy (11 - k) / 10 of the time. Owned costs 0.3 + 0.1 u, reserved 0.6, on
    // demand u. Owned beats on demand for u > 1/3, so 7 units; reserved never beats owned.
    let path: Vec<f64> = (1..=10).map(f64::from).collect();
    let offers = [
        offer("on demand", 0.0, 1.0, None),
        offer("owned", 0.3, 0.1, None),
        offer("reserved", 0.6, 0.0, None),
    ];
    let mix = buying_mix(std::slice::from_ref(&path), &offers, 1).unwrap();
    assert_eq!(gpus(&mix), [("reserved", 0), ("owned", 7), ("on demand", 3)]);
    // Owned: 7 x 0.3 + 0.1 x (1 + 0.9 + ... + 0.4); on demand 0.3 + 0.2 + 0.1.
    assert!((mix.cost_per_hour - (2.1 + 0.49 + 0.6)).abs() < 1e-9);
    // With three owned at most, reserved at 0.6 pays for units busy more than 0.6.
    let limited = [offers[0].clone(), offer("owned", 0.3, 0.1, Some(3)), offers[2].clone()];
    let mix = buying_mix(&[path], &limited, 1).unwrap();
    assert_eq!(mix.shares.iter().map(|share| share.gpus).sum::<u32>(), 10);
    let exact: f64 = 0.1 * (mix.shares[1].served) + 0.9;
    assert!((mix.shares[1].cost_per_hour - exact).abs() < 1e-9);
}

#[test]
fn owning_has_a_price_per_hour() {
    let owned = OwnedCost {
        capital: 35_064.0,
        residual: 0.0,
        years: 4.0,
        interest: 0.0,
        yearly: 876.6,
        people_yearly: 876.6,
        idle_kw: 0.2,
        busy_kw: 1.0,
        kwh: 0.1,
    };
    let offer = owned.offer(None).unwrap();
    assert!((offer.fixed - 1.22).abs() < 1e-9 && (offer.used - 0.08).abs() < 1e-9);
    let financed = OwnedCost { interest: 0.1, ..owned }.offer(None).unwrap();
    // The annuity factor of 10 % over 4 years is 0.31547.
    assert!((financed.fixed - (35_064.0 * 0.315_470_8 / 8766.0 + 0.2 + 0.02)).abs() < 1e-6);
    assert!(OwnedCost { years: 0.0, ..owned }.offer(None).is_err());
    assert!(OwnedCost { capital: f64::NAN, ..owned }.offer(None).is_err());
    assert!(OwnedCost { busy_kw: 0.1, ..owned }.offer(None).is_err());
}

#[test]
fn spot_counts_what_it_loses() {
    let spot = SpotTerms { price: 0.4, interruptions_per_hour: 0.1, lost_hours: 2.0, share: 0.5 };
    assert!((spot.useful_price().unwrap() - 0.5).abs() < 1e-12);
    assert!((spot.overflow(1.0).unwrap().used - 0.75).abs() < 1e-12);
    assert_eq!(spot.overflow(0.45).unwrap().name, "on demand");
    let hopeless = SpotTerms { lost_hours: 20.0, ..spot };
    assert_eq!(hopeless.overflow(1.0).unwrap().used, 1.0);
    assert!(SpotTerms { share: 1.5, ..spot }.overflow(1.0).is_err());
}

#[test]
fn bad_offers_are_refused() {
    let path = vec![vec![1.0, 2.0]];
    let good = offer("on demand", 0.0, 1.0, None);
    assert!(buying_mix(&path, &[], 1).is_err());
    assert!(buying_mix(&[], std::slice::from_ref(&good), 1).is_err());
    assert!(buying_mix(&[vec![]], std::slice::from_ref(&good), 1).is_err());
    assert!(buying_mix(&path, &[offer("x", f64::NAN, 1.0, None)], 1).is_err());
    assert!(buying_mix(&path, &[offer("x", 0.0, 1.0, Some(4))], 1).is_err());
    assert!(buying_mix(&path, std::slice::from_ref(&good), 0).is_err());
    let long = Offer { term_hours: 3, ..good.clone() };
    assert!(buying_mix(&path, &[long], 1).unwrap_err().to_string().contains("draw longer paths"));
    let nothing = buying_mix(&[vec![0.0; 5]], &[good], 1).unwrap();
    assert_eq!(nothing.cost_per_hour, 0.0);
}

proptest! {
    #[test]
    fn no_other_mix_is_cheaper(
        demand in prop::collection::vec(0u32..9, 1..12),
        fixed in 0.0f64..1.0, used in 0.0f64..0.9, reserved in 0.01f64..1.2, limit in 0u32..9,
    ) {
        let paths = vec![demand.iter().map(|&gpus| f64::from(gpus)).collect::<Vec<_>>()];
        let offers = [offer("on demand", 0.0, 1.0, None), offer("owned", fixed, used, Some(limit)), offer("reserved", reserved, 0.0, None)];
        let mix = buying_mix(&paths, &offers, 1).unwrap();
        let ordered = [offers[2].clone(), offers[1].clone(), offers[0].clone()];
        for first in 0..=8u32 {
            for second in 0..=limit {
                let cost = dispatched(&paths, &ordered, &[first, second, 99]);
                prop_assert!(mix.cost_per_hour <= cost + 1e-9, "{first}, {second}: {cost} < {}", mix.cost_per_hour);
            }
        }
    }
}
