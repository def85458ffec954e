//! Rows of choices, one value of each factor, in which every pair of values meets.
//!
//! A row takes one value of each [`Factor`]. [`rows`] draws as many as are asked for: while a pair
//! of values of two factors has not met, each row is the best of a number of drawn ones that hold
//! the first such pair; after that each is the one with the most triples that have not met. What
//! cannot stand together is said by [`Rule`]s, and a pair that nobody forbade but that no row can
//! hold is an error: a rule that reaches further than it says would hide what is not tested.
//!
//! Source: D. M. Cohen and others, "The AETG system", IEEE TSE 1997.

use std::collections::BTreeSet;

/// Something to choose, and what there is to choose from.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// Its name.
    pub name: &'static str,
    /// The values.
    pub values: &'static [&'static str],
}

/// Values of different factors that do not stand in one row together.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Factor and value, each.
    pub never: &'static [(&'static str, &'static str)],
    /// Why not.
    pub why: &'static str,
}

/// One value of each factor, by its place among the values.
pub type Row = Vec<usize>;

/// A pair of values: factor and value of the one, factor and value of the other.
type Pair = ((usize, usize), (usize, usize));

/// Rows that are drawn to choose one of them.
const CANDIDATES: usize = 24;

/// What was drawn.
#[derive(Debug)]
pub struct Covering {
    /// The rows, no two alike.
    pub rows: Vec<Row>,
    /// Pairs of values that meet in them.
    pub pairs: usize,
    /// Pairs that a rule of two values forbids.
    pub pairs_forbidden: usize,
    /// Triples of values that meet.
    pub triples: usize,
    /// Triples there are, the forbidden ones too.
    pub triples_all: usize,
}

/// Draws `count` rows with the numbers of `below`, which gives one below its argument.
///
/// # Errors
/// If a rule names what is not there, if a pair cannot be had that no rule of two values forbids,
/// or if so many different rows do not hold every pair.
pub fn rows(
    factors: &[Factor],
    rules: &[Rule],
    count: usize,
    below: &mut dyn FnMut(usize) -> usize,
) -> Result<Covering, String> {
    let rules = resolve(factors, rules)?;
    let mut pairs = BTreeSet::new();
    let mut pairs_forbidden = 0;
    for (a, first) in factors.iter().enumerate() {
        for (b, second) in factors.iter().enumerate().skip(a + 1) {
            for one in 0..first.values.len() {
                for other in 0..second.values.len() {
                    let pair = ((a, one), (b, other));
                    if rules.iter().any(|r| r[..] == [pair.0, pair.1]) {
                        pairs_forbidden += 1;
                    } else {
                        pairs.insert(pair);
                    }
                }
            }
        }
    }
    let mut draw = Draw {
        factors,
        rules: &rules,
        below,
    };
    let pairs_wanted = pairs.len();
    let mut triples = BTreeSet::new();
    let mut drawn: Vec<Row> = Vec::new();
    while drawn.len() < count {
        let wanted = pairs.first().copied();
        let mut best: Option<(usize, Row)> = None;
        for _ in 0..CANDIDATES {
            let Some(row) = draw.row(wanted) else {
                let (one, other) = wanted.ok_or("no row can be had")?;
                let name = |(f, v): (usize, usize)| {
                    let factor: &Factor = &factors[f];
                    format!("{}={}", factor.name, factor.values[v])
                };
                return Err(format!("no row can hold {} and {}", name(one), name(other)));
            };
            if drawn.contains(&row) {
                continue;
            }
            let new = if wanted.is_some() {
                pairs_of(&row).filter(|p| pairs.contains(p)).count()
            } else {
                triples_of(&row).filter(|t| !triples.contains(t)).count()
            };
            if best.as_ref().is_none_or(|(most, _)| new > *most) {
                best = Some((new, row));
            }
        }
        let (_, row) = best.ok_or("every row that was drawn is there already")?;
        for pair in pairs_of(&row) {
            pairs.remove(&pair);
        }
        triples.extend(triples_of(&row));
        drawn.push(row);
    }
    if !pairs.is_empty() {
        return Err(format!("{count} rows leave {} pairs out", pairs.len()));
    }
    Ok(Covering {
        rows: drawn,
        pairs: pairs_wanted,
        pairs_forbidden,
        triples: triples.len(),
        triples_all: triples_in(factors),
    })
}

/// The rules by the places of factors and values, in the order of the factors.
fn resolve(factors: &[Factor], rules: &[Rule]) -> Result<Vec<Vec<(usize, usize)>>, String> {
    let place = |&(name, value): &(&str, &str)| {
        let factor = factors.iter().position(|f| f.name == name)?;
        let value = factors[factor].values.iter().position(|v| *v == value)?;
        Some((factor, value))
    };
    let mut found = Vec::new();
    for rule in rules {
        let places: Option<Vec<_>> = rule.never.iter().map(place).collect();
        let mut places = places.ok_or_else(|| format!("there is no such value: {rule:?}"))?;
        places.sort_unstable();
        found.push(places);
    }
    Ok(found)
}

fn pairs_of(row: &[usize]) -> impl Iterator<Item = Pair> {
    let places = row.iter().copied().enumerate();
    places.clone().flat_map(move |one| {
        let after = places.clone().skip(one.0 + 1);
        after.map(move |other| (one, other))
    })
}

fn triples_of(row: &[usize]) -> impl Iterator<Item = (Pair, (usize, usize))> {
    pairs_of(row).flat_map(|pair| {
        let last = pair.1.0;
        let after = row.iter().copied().enumerate().skip(last + 1);
        after.map(move |third| (pair, third))
    })
}

fn triples_in(factors: &[Factor]) -> usize {
    let sizes: Vec<usize> = factors.iter().map(|f| f.values.len()).collect();
    let mut all = 0;
    for (a, one) in sizes.iter().enumerate() {
        for (b, two) in sizes.iter().enumerate().skip(a + 1) {
            let rest: usize = sizes.iter().skip(b + 1).sum();
            all += one * two * rest;
        }
    }
    all
}

/// Draws whole rows.
struct Draw<'a> {
    factors: &'a [Factor],
    rules: &'a [Vec<(usize, usize)>],
    below: &'a mut dyn FnMut(usize) -> usize,
}

impl Draw<'_> {
    /// A row that holds the pair, if there is one.
    fn row(&mut self, holds: Option<Pair>) -> Option<Row> {
        let mut chosen = vec![None; self.factors.len()];
        if let Some((one, other)) = holds {
            chosen[one.0] = Some(one.1);
            chosen[other.0] = Some(other.1);
        }
        self.complete(&mut chosen, 0)
            .then(|| chosen.into_iter().flatten().collect())
    }

    fn complete(&mut self, chosen: &mut [Option<usize>], at: usize) -> bool {
        let Some(factor) = self.factors.get(at) else {
            return self.allowed(chosen);
        };
        if chosen[at].is_some() {
            return self.allowed(chosen) && self.complete(chosen, at + 1);
        }
        let mut values: Vec<usize> = (0..factor.values.len()).collect();
        while !values.is_empty() {
            let drawn = (self.below)(values.len());
            chosen[at] = Some(values.swap_remove(drawn));
            if self.allowed(chosen) && self.complete(chosen, at + 1) {
                return true;
            }
        }
        chosen[at] = None;
        false
    }

    fn allowed(&self, chosen: &[Option<usize>]) -> bool {
        let broken = |rule: &Vec<(usize, usize)>| {
            let mut places = rule.iter();
            places.all(|&(factor, value)| chosen[factor] == Some(value))
        };
        !self.rules.iter().any(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTORS: [Factor; 4] = [
        Factor {
            name: "a",
            values: &["0", "1", "2"],
        },
        Factor {
            name: "b",
            values: &["0", "1", "2"],
        },
        Factor {
            name: "c",
            values: &["0", "1"],
        },
        Factor {
            name: "d",
            values: &["0", "1"],
        },
    ];

    /// Numbers that look drawn.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 1_u64;
        move |bound| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % bound
        }
    }

    fn rule(never: &'static [(&'static str, &'static str)]) -> Rule {
        Rule { never, why: "" }
    }

    #[test]
    fn every_pair_that_is_not_forbidden_meets() {
        let rules = [
            rule(&[("a", "2"), ("c", "1")]),
            rule(&[("a", "0"), ("b", "0"), ("d", "1")]),
        ];
        let covering = rows(&FACTORS, &rules, 16, &mut numbers()).unwrap();
        let met: BTreeSet<Pair> = covering.rows.iter().flat_map(|r| pairs_of(r)).collect();
        // 9 + 4 times 6 + 4, and one is forbidden.
        assert_eq!((met.len(), covering.pairs), (36, 36));
        assert_eq!(covering.pairs_forbidden, 1);
        let different: BTreeSet<&Row> = covering.rows.iter().collect();
        assert_eq!(different.len(), 16);
        for row in &covering.rows {
            assert!(!(row[0] == 2 && row[2] == 1) && row[..] != [0, 0, 0, 1]);
            assert!(!(row[0] == 0 && row[1] == 0 && row[3] == 1));
        }
        assert!(covering.triples < covering.triples_all);
        assert_eq!(covering.triples_all, 18 + 18 + 12 + 12);
    }

    #[test]
    fn the_same_numbers_give_the_same_rows() {
        let draw = || rows(&FACTORS, &[], 12, &mut numbers()).unwrap().rows;
        assert_eq!(draw(), draw());
    }

    #[test]
    fn a_pair_that_rules_make_impossible_unsaid_is_an_error() {
        let rules = [
            rule(&[("a", "0"), ("b", "0"), ("c", "0")]),
            rule(&[("a", "0"), ("b", "0"), ("c", "1")]),
        ];
        let error = rows(&FACTORS, &rules, 20, &mut numbers()).unwrap_err();
        assert_eq!(error, "no row can hold a=0 and b=0");
        let unknown = [rule(&[("a", "7")])];
        assert!(rows(&FACTORS, &unknown, 20, &mut numbers()).is_err());
        assert!(rows(&FACTORS, &[], 4, &mut numbers()).is_err(), "too few");
    }
}
