//! Minimum-cost multiple-choice cover: the cheapest way to free enough (docs/control.md, 4.8). Each
//! group is a job with its options, of which at most one is chosen.

/// One way to free something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Amount freed, in the unit of the need; above 0.
    pub frees: u32,
    /// Cost; not negative.
    pub cost: i64,
}

/// The choices of one job.
pub type Group = Vec<Choice>;

/// Most steps of the exact method: a few hundredths of a second.
const EXACT: u64 = 4_000_000;

/// Chooses at most one option per group so that together they free at least `need` at the lowest
/// cost. Returns the index chosen in each group. `None`: all groups together do not free enough.
///
/// Exact by dynamic programming in O(choices × need) while that is fast; beyond that greedy by cost
/// per unit, then dropping what became superfluous.
pub fn cheapest(groups: &[Group], need: u32) -> Option<Vec<Option<usize>>> {
    let mut taken = vec![None; groups.len()];
    if need == 0 {
        return Some(taken);
    }
    let most: u64 =
        groups.iter().map(|group| group.iter().map(|c| u64::from(c.frees)).max().unwrap_or(0)).sum();
    if most < u64::from(need) {
        return None;
    }
    let choices: u64 = groups.iter().map(|group| group.len() as u64).sum();
    if choices * u64::from(need) <= EXACT {
        exact(groups, need as usize, &mut taken);
    } else {
        greedy(groups, need, &mut taken);
    }
    Some(taken)
}

/// `best[k]` is the lowest cost to free at least k with the groups so far. Ties go to earlier
/// groups and choices.
fn exact(groups: &[Group], need: usize, taken: &mut [Option<usize>]) {
    const NEVER: i64 = i64::MAX;
    let mut best = vec![NEVER; need + 1];
    best[0] = 0;
    // Choice taken per group and k; MAX means none.
    let mut chosen = vec![vec![u16::MAX; need + 1]; groups.len()];
    for (group, chosen) in groups.iter().zip(&mut chosen) {
        let before = best.clone();
        for (at, choice) in group.iter().enumerate().take(usize::from(u16::MAX)) {
            for k in 1..=need {
                let rest = before[k.saturating_sub(choice.frees as usize)];
                if rest != NEVER && rest.saturating_add(choice.cost) < best[k] {
                    best[k] = rest.saturating_add(choice.cost);
                    chosen[k] = at as u16;
                }
            }
        }
    }
    let mut k = need;
    for (at, group) in groups.iter().enumerate().rev() {
        let choice = chosen[at][k];
        if choice != u16::MAX {
            taken[at] = Some(usize::from(choice));
            k = k.saturating_sub(group[usize::from(choice)].frees as usize);
        }
    }
}

fn greedy(groups: &[Group], need: u32, taken: &mut [Option<usize>]) {
    let mut order: Vec<(usize, usize)> =
        groups.iter().enumerate().flat_map(|(g, group)| (0..group.len()).map(move |c| (g, c))).collect();
    // a.cost / a.frees < b.cost / b.frees without rounding.
    let price = |(g, c): (usize, usize)| groups[g][c];
    order.sort_by(|&a, &b| {
        let (x, y) = (price(a), price(b));
        let left = i128::from(x.cost) * i128::from(y.frees);
        let right = i128::from(y.cost) * i128::from(x.frees);
        left.cmp(&right).then(y.frees.cmp(&x.frees)).then(a.cmp(&b))
    });
    let mut freed = 0u64;
    let mut picked: Vec<usize> = Vec::new();
    for (g, c) in order {
        if freed >= u64::from(need) {
            break;
        }
        let before = taken[g].map_or(0, |c| groups[g][c].frees);
        if groups[g][c].frees > before {
            if taken[g].is_none() {
                picked.push(g);
            }
            freed += u64::from(groups[g][c].frees - before);
            taken[g] = Some(c);
        }
    }
    // Drop superfluous choices, most expensive first.
    picked.sort_by_key(|&g| std::cmp::Reverse(taken[g].map_or(0, |c| groups[g][c].cost)));
    for g in picked {
        let frees = taken[g].map_or(0, |c| u64::from(groups[g][c].frees));
        if freed - frees >= u64::from(need) {
            freed -= frees;
            taken[g] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(choices: &[(u32, i64)]) -> Group {
        choices.iter().map(|&(frees, cost)| Choice { frees, cost }).collect()
    }

    fn cost(groups: &[Group], taken: &[Option<usize>]) -> (u32, i64) {
        let picked = groups.iter().zip(taken).filter_map(|(group, taken)| taken.map(|at| group[at]));
        picked.fold((0, 0), |(frees, cost), choice| (frees + choice.frees, cost + choice.cost))
    }

    #[test]
    fn one_large_job_is_cheaper_than_three_small_ones() {
        let groups = [group(&[(8, 50)]), group(&[(8, 50)]), group(&[(8, 50)]), group(&[(24, 120)])];
        assert_eq!(cheapest(&groups, 24), Some(vec![None, None, None, Some(0)]));
        assert_eq!(cheapest(&groups, 16), Some(vec![Some(0), Some(0), None, None]));
        assert_eq!(cheapest(&groups, 49), None);
        assert_eq!(cheapest(&groups, 0), Some(vec![None; 4]));
    }

    #[test]
    fn a_shrink_comes_before_an_eviction() {
        // The elastic job gives 8 for 5 or all 16 for 90; the gang 16 for 80.
        let groups = [group(&[(8, 5), (16, 90)]), group(&[(16, 80)])];
        assert_eq!(cheapest(&groups, 8), Some(vec![Some(0), None]));
        assert_eq!(cheapest(&groups, 16), Some(vec![None, Some(0)]));
        assert_eq!(cheapest(&groups, 24), Some(vec![Some(0), Some(0)]));
    }

    #[test]
    fn exact_equals_exhaustive_search_and_greedy_covers() {
        let mut state = 3u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let groups: Vec<Group> = (0..6)
                .map(|_| {
                    (0..next(3))
                        .map(|_| Choice { frees: 1 + next(9) as u32, cost: next(50) as i64 })
                        .collect()
                })
                .collect();
            let need = 1 + next(20) as u32;
            let mut best = None;
            let ways: u32 = groups.iter().map(|group| group.len() as u32 + 1).product();
            for mut way in 0..ways {
                let taken: Vec<Option<usize>> = groups
                    .iter()
                    .map(|group| {
                        let base = group.len() as u32 + 1;
                        let digit = way % base;
                        way /= base;
                        digit.checked_sub(1).map(|d| d as usize)
                    })
                    .collect();
                let (frees, cost) = cost(&groups, &taken);
                if frees >= need && best.is_none_or(|best| cost < best) {
                    best = Some(cost);
                }
            }
            let found = cheapest(&groups, need).map(|taken| cost(&groups, &taken));
            assert_eq!(found.map(|(_, cost)| cost), best);
            if let Some(best) = best {
                let mut taken = vec![None; groups.len()];
                greedy(&groups, need, &mut taken);
                let (frees, cost) = cost(&groups, &taken);
                assert!(frees >= need && cost >= best);
            }
        }
    }
}
