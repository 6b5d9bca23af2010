//! Load for the screenshot: an inverted index that is filled and searched.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

const WORDS: [&str; 12] = [
    "sediment", "layer", "profile", "stack", "kernel", "query", "sample", "label", "window", "shard", "index", "merge",
];

#[derive(Default)]
struct Index {
    postings: BTreeMap<String, Vec<(u32, f64)>>,
}

impl Index {
    #[inline(never)]
    fn add(&mut self, document: u32, text: &str) {
        for (word, count) in count_words(text) {
            self.postings.entry(word).or_default().push((document, count as f64));
        }
    }

    #[inline(never)]
    fn search(&self, query: &str) -> Vec<(u32, f64)> {
        let mut scores: HashMap<u32, f64> = HashMap::new();
        for word in query.split(' ') {
            let Some(found) = self.postings.get(word) else { continue };
            let rarity = (1.0 + 1000.0 / found.len() as f64).ln();
            for (document, count) in found {
                *scores.entry(*document).or_default() += rarity * (1.0 + count.ln());
            }
        }
        rank(scores)
    }
}

#[inline(never)]
fn rank(scores: HashMap<u32, f64>) -> Vec<(u32, f64)> {
    let mut ranked: Vec<_> = scores.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(10);
    ranked
}

#[inline(never)]
fn count_words(text: &str) -> HashMap<String, u32> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
    counts
}

#[inline(never)]
fn write_document(seed: u32) -> String {
    let mut state = seed;
    let mut text = String::new();
    for _ in 0..120 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = WORDS[(state >> 16) as usize % WORDS.len()];
        text += &format!("{word}{} ", state >> 28);
    }
    text
}

#[inline(never)]
fn build_index(documents: u32) -> Index {
    let mut index = Index::default();
    for document in 0..documents {
        index.add(document, &write_document(document));
    }
    index
}

fn main() {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        let index = build_index(60);
        let found: usize = (0..60).map(|i| index.search(&write_document(i)[..200]).len()).sum();
        assert!(found > 0);
        // Uses a share of one core that rises and falls, so that the timeline moves.
        let share = 0.10 + 0.05 * (start.elapsed().as_secs_f64() / 40.0).sin();
        std::thread::sleep(Duration::from_secs_f64(began.elapsed().as_secs_f64() * (1.0 / share - 1.0)));
    }
}
