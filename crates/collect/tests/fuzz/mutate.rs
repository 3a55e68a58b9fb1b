//! Mutations of inputs.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes and texts at which parsers turn: ends of lines and records, limits of numbers, lengths.
const PIECES: [&[u8]; 20] = [
    b"\n",
    b"\x1f",
    b"|",
    b"\"",
    b"[",
    b"]",
    b"{",
    b",",
    b"-",
    b"[0-99999999]",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"1e400",
    b"NaN",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x10",
    b"\0",
    b"\xed\xa0\x80",
    "\u{202e}".as_bytes(),
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

pub struct Mutator {
    random: ChaCha8Rng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), seeds }
    }

    /// Another input of at most `most` bytes: a seed with one to eight changes.
    pub fn next(&mut self, most: usize) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        for _ in 0..self.random.random_range(1..=8) {
            self.change(&mut input);
            input.truncate(most);
        }
        input
    }

    fn seed(&mut self) -> &[u8] {
        let at = self.random.random_range(0..self.seeds.len());
        &self.seeds[at]
    }

    fn place(&mut self, input: &[u8]) -> usize {
        self.random.random_range(0..=input.len())
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let (a, b) = (self.place(input), self.place(input));
        let (from, to) = (a.min(b), a.max(b));
        match self.random.random_range(0..8) {
            0 if from < input.len() => input[from] ^= 1 << self.random.random_range(0..8),
            1 if from < input.len() => input[from] = self.random.random(),
            2 => drop(input.drain(from..to)),
            3 => {
                let piece = PIECES[self.random.random_range(0..PIECES.len())];
                input.splice(from..from, piece.iter().copied());
            }
            // A part again, up to a thousand times.
            4 => {
                let part = input[from..to.min(from + 64)].to_vec();
                let times = 1 << self.random.random_range(0..10);
                input.splice(from..from, part.repeat(times));
            }
            5 => {
                let other = self.seed().to_vec();
                let cut = self.place(&other);
                input.truncate(from);
                input.extend_from_slice(&other[cut..]);
            }
            6 => input.truncate(to),
            _ => input.splice(from..from, [self.random.random(), self.random.random()]).for_each(drop),
        }
    }
}
