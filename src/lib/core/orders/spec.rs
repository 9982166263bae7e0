//! The order SPEC: its parts and its canonical text. `grammar.rs` reads it.

use std::fmt;

/// What the rows of a stream are. `OrderSpec::parse` reads it, `Display` prints it canonically.
///
/// ```text
/// SPEC  = l2r | r2l | uniform | fixed:SEED | fixed:@FILE | fractal
///       | blocks:B[:inner=INNER][:outer=OUTER]
///       | mix:WEIGHT*PART+WEIGHT*PART…       PART: a SPEC other than mix and ramp
///       | ramp:A..B:SPEC1->SPEC2             neither of them a ramp
/// INNER = l2r | uniform | fixed:SEED | a list such as 0,2,3,1
/// OUTER = l2r | uniform | fixed:SEED
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum OrderSpec {
    /// 0, 1, 2, …
    L2r,
    /// …, 2, 1, 0
    R2l,
    /// A fresh random permutation per row.
    Uniform,
    /// One random permutation for all rows: row 0 of `uniform` under this seed.
    Fixed(u64),
    /// One permutation for all rows, the first row of this file.
    FixedFile(String),
    /// Breadth first: the midpoint of each interval, then those of its halves, left first.
    Fractal,
    /// Consecutive blocks, visited in `outer` order, each revealed in `inner` order.
    Blocks {
        /// Positions in a block; the last block may be shorter, except with a list.
        size: usize,
        /// The order inside each block.
        inner: Inner,
        /// The order of the blocks.
        outer: Outer,
    },
    /// A fresh draw per row among SPECs with these probabilities, which sum to 1.
    Mix(Vec<(f64, OrderSpec)>),
    /// A curriculum: the chance of `end` rises linearly from 0 at row `from` to 1 at row `to`.
    Ramp {
        /// The last row that is surely of `start`.
        from: u64,
        /// The first row that is surely of `end`.
        to: u64,
        /// The SPEC at the beginning.
        start: Box<OrderSpec>,
        /// The SPEC at the end.
        end: Box<OrderSpec>,
    },
}

/// The order inside a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inner {
    /// Ascending.
    L2r,
    /// A fresh random permutation for each block of each row.
    Uniform,
    /// One random permutation for all blocks and rows.
    Fixed(u64),
    /// This permutation of 0..B for all blocks and rows.
    List(Vec<u32>),
}

/// The order of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outer {
    /// Ascending.
    L2r,
    /// A fresh random permutation per row.
    Uniform,
    /// One random permutation for all rows.
    Fixed(u64),
}

impl OrderSpec {
    /// What its rows come to in the end: of a curriculum its last SPEC, else itself.
    pub fn settled(&self) -> &OrderSpec {
        match self {
            OrderSpec::Ramp { end, .. } => end,
            other => other,
        }
    }

    /// Whether it makes the same row for every sequence, nothing in it being drawn per row.
    pub fn is_one_order(&self) -> bool {
        match self {
            OrderSpec::L2r
            | OrderSpec::R2l
            | OrderSpec::Fixed(_)
            | OrderSpec::FixedFile(_)
            | OrderSpec::Fractal => true,
            OrderSpec::Blocks { inner, outer, .. } => {
                *inner != Inner::Uniform && *outer != Outer::Uniform
            }
            OrderSpec::Uniform | OrderSpec::Mix(_) | OrderSpec::Ramp { .. } => false,
        }
    }
}

impl fmt::Display for OrderSpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OrderSpec::L2r => f.write_str("l2r"),
            OrderSpec::R2l => f.write_str("r2l"),
            OrderSpec::Uniform => f.write_str("uniform"),
            OrderSpec::Fixed(seed) => write!(f, "fixed:{seed}"),
            OrderSpec::FixedFile(path) => write!(f, "fixed:@{path}"),
            OrderSpec::Fractal => f.write_str("fractal"),
            OrderSpec::Blocks { size, inner, outer } => {
                write!(f, "blocks:{size}:inner=")?;
                match inner {
                    Inner::L2r => f.write_str("l2r")?,
                    Inner::Uniform => f.write_str("uniform")?,
                    Inner::Fixed(seed) => write!(f, "fixed:{seed}")?,
                    Inner::List(list) => {
                        for (i, position) in list.iter().enumerate() {
                            let comma = if i == 0 { "" } else { "," };
                            write!(f, "{comma}{position}")?;
                        }
                    }
                }
                match outer {
                    Outer::L2r => f.write_str(":outer=l2r"),
                    Outer::Uniform => f.write_str(":outer=uniform"),
                    Outer::Fixed(seed) => write!(f, ":outer=fixed:{seed}"),
                }
            }
            OrderSpec::Mix(parts) => {
                f.write_str("mix:")?;
                for (i, (weight, part)) in parts.iter().enumerate() {
                    let plus = if i == 0 { "" } else { "+" };
                    write!(f, "{plus}{weight}*{part}")?;
                }
                Ok(())
            }
            OrderSpec::Ramp { from, to, start, end } => {
                write!(f, "ramp:{from}..{to}:{start}->{end}")
            }
        }
    }
}

impl serde::Serialize for OrderSpec {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_spec_is_one_order_when_nothing_in_it_is_drawn_per_row() {
        for (spec, one) in [
            ("l2r", true),
            ("fixed:3", true),
            ("fractal", true),
            ("blocks:4:inner=0,2,3,1:outer=l2r", true),
            ("blocks:4", false),
            ("uniform", false),
            ("mix:0.5*l2r+0.5*r2l", false),
        ] {
            assert_eq!(OrderSpec::parse(spec).unwrap().is_one_order(), one, "{spec}");
        }
    }

    #[test]
    fn specs_of_the_contract_parse_and_print_canonically() {
        for text in [
            "l2r",
            "r2l",
            "uniform",
            "fixed:7",
            "fixed:@a/b-c.npy",
            "fractal",
            "blocks:4:inner=0,2,3,1:outer=l2r",
            "blocks:16:inner=fixed:3:outer=fixed:18446744073709551615",
            "mix:0.1*l2r+0.9*uniform",
            "mix:0.25*blocks:4:inner=0,2,3,1:outer=uniform+0.5*fixed:@x.npy+0.25*fractal",
            "ramp:0..1000:uniform->l2r",
            "ramp:5..9:fixed:@a-b.npy->mix:0.5*l2r+0.5*r2l",
        ] {
            assert_eq!(OrderSpec::parse(text).unwrap().to_string(), text);
        }
        for text in ["blocks:4", "blocks:4:outer=uniform", "blocks:4:outer=uniform:inner=uniform"] {
            let text = OrderSpec::parse(text).unwrap().to_string();
            assert_eq!(text, "blocks:4:inner=uniform:outer=uniform");
        }
    }

    #[test]
    fn a_malformed_spec_names_the_character_and_what_is_allowed() {
        for (text, character, allowed) in [
            ("", 1, "l2r, r2l, uniform, fixed:, fractal, blocks:, mix:, ramp:"),
            ("l2x", 3, "l2r, r2l"),
            ("unifrom", 5, "uniform"),
            ("l2r ", 4, "the end"),
            ("fixed:", 7, "a seed"),
            ("fixed:99999999999999999999", 7, "a seed"),
            ("fixed:@", 8, "the path of"),
            ("blocks:0", 8, "a block length"),
            ("blocks:4;", 9, ":inner=, :outer= or the end"),
            ("blocks:4:inner=r2l", 16, "l2r, uniform, fixed:, a list"),
            ("blocks:4:inner=0,1,2", 16, "a list that names each of 0 to 3 once"),
            ("blocks:4:inner=0,1,2,2", 16, "a list that names each of 0 to 3 once"),
            ("blocks:4:outer=0,1", 16, "l2r, uniform, fixed:"),
            ("blocks:4:inner=l2r:inner=l2r", 20, "outer="),
            ("mix:", 5, "a weight"),
            ("mix:0.1*l2r+0.8*uniform", 5, "weights that sum to 1"),
            ("mix:0.1l2r", 8, "*"),
            ("mix:1*l2r-", 10, "+ or the end"),
            ("mix:1*mix:1*l2r", 7, "l2r, r2l, uniform, fixed:, fractal, blocks:"),
            ("ramp:9..5:l2r->r2l", 9, "a row after 9"),
            ("ramp:0.5:l2r->r2l", 7, ".."),
            ("ramp:0..5:l2r", 14, "->"),
            ("ramp:0..5:l2r->ramp:", 17, "mix:"),
        ] {
            let error = OrderSpec::parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let message = error.to_string();
            assert!(message.contains(&format!("character {character}:")), "{text}: {message}");
            let listed = message.split("allowed here: ").nth(1).unwrap();
            assert!(listed.contains(allowed), "{text}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    fn leaf() -> impl Strategy<Value = OrderSpec> {
        let inner = prop_oneof![
            Just(Inner::L2r),
            Just(Inner::Uniform),
            any::<u64>().prop_map(Inner::Fixed),
            Just((0u32..5).collect::<Vec<_>>()).prop_shuffle().prop_map(Inner::List),
        ];
        let outer = prop_oneof![
            Just(Outer::L2r),
            Just(Outer::Uniform),
            any::<u64>().prop_map(Outer::Fixed)
        ];
        prop_oneof![
            Just(OrderSpec::L2r),
            Just(OrderSpec::R2l),
            Just(OrderSpec::Uniform),
            Just(OrderSpec::Fractal),
            any::<u64>().prop_map(OrderSpec::Fixed),
            "[a-z./-]{1,8}[a-z]".prop_map(OrderSpec::FixedFile),
            (inner, outer).prop_map(|(inner, outer)| OrderSpec::Blocks { size: 5, inner, outer }),
        ]
    }

    fn any_spec() -> impl Strategy<Value = OrderSpec> {
        let mixed = (leaf(), leaf(), 0u32..=64).prop_map(|(a, b, w)| {
            let w = f64::from(w) / 64.0;
            OrderSpec::Mix(vec![(w, a), (1.0 - w, b)])
        });
        let flat = prop_oneof![leaf(), mixed].boxed();
        let ramp = (flat.clone(), flat.clone(), 0..u64::MAX - 9).prop_map(|(start, end, from)| {
            OrderSpec::Ramp { from, to: from + 9, start: Box::new(start), end: Box::new(end) }
        });
        prop_oneof![flat, ramp]
    }

    proptest! {
        #[test]
        fn every_spec_survives_its_text(spec in any_spec()) {
            prop_assert_eq!(OrderSpec::parse(&spec.to_string()).unwrap(), spec);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(mix:|ramp:|blocks:|fixed:|[0-9.*+@,:=>é-]|l2r){0,12}") {
            let _ = OrderSpec::parse(&text);
        }
    }
}
