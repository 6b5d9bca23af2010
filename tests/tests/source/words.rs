//! Tests of the text of the source and the documents: lengths of lines and sentences, comments, and unfinished work.

use crate::files::{Source, check, with_extensions};

/// Largest number of characters in a line.
const LINE_MAX: usize = 120;
/// Largest number of words in a sentence.
const SENTENCE_WORDS_MAX: usize = 35;
/// Words with which no comment may begin, because the subject of a comment is a thing and not a question.
const QUESTION_WORDS: [&str; 8] = ["What", "Which", "Whether", "How", "Where", "When", "Why", "Who"];
/// Abbreviations whose period does not end a sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "vs.", "etc."];

#[test]
fn no_line_is_longer_than_120_characters() {
    let mut violations = Vec::new();
    for source in with_extensions(&["rs", "c", "h", "ts", "tsx", "css", "sh", "md"]) {
        for (number, line) in (1..).zip(source.text.lines()) {
            let characters = line.chars().count();
            if characters > LINE_MAX {
                violations.push((source.path.clone(), format!("line {number} has {characters} characters")));
            }
        }
    }
    check("wrap these lines", &violations);
}

#[test]
fn no_work_is_left_undone() {
    // The words are in two parts, so that the test does not find this file itself.
    let words = [["TO", "DO"], ["FIX", "ME"], ["X", "XX"], ["to", "do!("], ["unimple", "mented!("]];
    let words = words.map(|parts| parts.concat());
    let mut violations = Vec::new();
    for source in with_extensions(&["rs", "c", "h", "ts", "tsx", "py", "sh"]) {
        for (number, line) in (1..).zip(source.text.lines()) {
            if words.iter().any(|word| has_word(line, word)) {
                violations.push((source.path.clone(), format!("line {number}: {}", line.trim())));
            }
        }
    }
    check("do these, or write an issue", &violations);
}

#[test]
fn markdown_has_one_sentence_a_line() {
    let mut violations = Vec::new();
    for source in with_extensions(&["md"]) {
        for line in prose_of_markdown(&source.text) {
            if sentences(&line.text).len() > 1 {
                violations.push((source.path.clone(), format!("line {}", line.number)));
            }
        }
    }
    check("begin a new line after each sentence", &violations);
}

#[test]
fn no_sentence_has_more_than_35_words() {
    let mut violations = Vec::new();
    for source in with_extensions(&["rs", "c", "h", "ts", "tsx", "md"]) {
        for paragraph in prose(&source) {
            for sentence in sentences(&paragraph.text) {
                let words = sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
                if words > SENTENCE_WORDS_MAX {
                    violations.push((source.path.clone(), format!("line {}, {words} words", paragraph.number)));
                }
            }
        }
    }
    check("split these sentences", &violations);
}

#[test]
fn no_comment_begins_with_a_question_word() {
    let mut violations = Vec::new();
    let mut comments = 0;
    for source in with_extensions(&["rs", "c", "h", "ts", "tsx"]) {
        let mut is_first = true;
        for (number, line) in (1..).zip(source.text.lines()) {
            let Some(comment) = comment_of(source.extension(), line) else {
                is_first = true;
                continue;
            };
            let text = comment.text.trim_start();
            let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            let is_question = (is_first || comment.is_start) && QUESTION_WORDS.contains(&word);
            if is_question || text.contains("See the module") {
                violations.push((source.path.clone(), format!("line {number}: {text}")));
            }
            is_first &= text.is_empty();
            comments += 1;
        }
    }
    assert!(comments > 1000, "only {comments} lines of comments were found");
    check("name the thing that these comments describe", &violations);
}

/// Returns true if a line has this word, and not only as a part of another word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !is_part(before) && (!is_part(after) || word.ends_with('('))
    })
}

/// Text of one paragraph, one list item or one line, without markup.
#[derive(Debug)]
struct Prose {
    /// Number of the text's first line in the file.
    number: usize,
    text: String,
}

/// Returns the paragraphs of a document, or of the comments of a source file.
fn prose(source: &Source) -> Vec<Prose> {
    let lines = (1..).zip(source.text.lines());
    if source.extension() == "md" {
        return paragraphs(lines.map(|(number, line)| (number, Some(line))));
    }
    paragraphs(lines.flat_map(|(number, line)| {
        let comment = comment_of(source.extension(), line);
        // The added `None` separates this comment from the comment before it.
        let gap = comment.as_ref().filter(|comment| comment.is_start).map(|_| (number, None));
        gap.into_iter().chain([(number, comment.map(|comment| comment.text))])
    }))
}

/// A line of a comment.
struct Comment<'a> {
    text: &'a str,
    /// True if the line opens a block comment.
    is_start: bool,
}

/// Returns the comment in a line of source: a doc comment in Rust, or any comment in C and TypeScript.
fn comment_of<'a>(extension: &str, line: &'a str) -> Option<Comment<'a>> {
    let line = line.trim();
    if extension == "rs" {
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        return (!text.starts_with('/')).then_some(Comment { text, is_start: false });
    }
    let block = line.strip_prefix("/*");
    let text = block.or_else(|| line.strip_prefix("//")).or_else(|| line.strip_prefix("* "))?;
    let text = text.trim_start_matches('*').trim_end_matches("*/").trim();
    Some(Comment { text, is_start: block.is_some() })
}

/// Returns the prose of a document: no code, no tables, no headings.
fn prose_of_markdown(text: &str) -> Vec<Prose> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        let is_prose = !is_code && !line.trim_start().starts_with(['|', '#', '`']);
        if is_prose {
            lines.push(Prose { number, text: without_code(line.trim()) });
        }
    }
    lines
}

/// Joins lines to paragraphs. `None` stands for a line that is not text, which ends a paragraph.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, Option<&'a str>)>) -> Vec<Prose> {
    let mut paragraphs: Vec<Prose> = Vec::new();
    let mut is_code = false;
    let mut is_open = false;
    for (number, line) in lines {
        let text = line.unwrap_or_default().trim();
        if line.is_some() && text.starts_with("```") {
            is_code = !is_code;
            is_open = false;
            continue;
        }
        let is_item =
            text.starts_with("- ") || text.starts_with("* ") || text.starts_with(|c: char| c.is_ascii_digit());
        if is_code || text.is_empty() || text.starts_with(['|', '#']) {
            is_open = false;
        } else if is_open && !is_item {
            if let Some(last) = paragraphs.last_mut() {
                last.text.push(' ');
                last.text.push_str(&without_code(text));
            }
        } else {
            paragraphs.push(Prose { number, text: without_code(text) });
            is_open = true;
        }
    }
    paragraphs
}

/// Returns the text with each piece of code replaced by one word.
fn without_code(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    pieces.map(|(i, piece)| if i % 2 == 0 { piece } else { "code" }).collect()
}

/// Returns the sentences of a text. A sentence ends at a period, question mark or exclamation mark that precedes a
/// capital letter or code.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(' ') {
        let before = &text[..at];
        let after = text[at..].trim_start();
        let word = before.rsplit(' ').next().unwrap_or_default();
        let is_end = word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '?', '!']);
        // The number of an item in a list; a year or another large number may end a sentence.
        let is_number = word.len() < 4 && word.trim_end_matches('.').chars().all(|c| c.is_ascii_digit());
        let is_start = after.starts_with(|c: char| c.is_uppercase()) || after.starts_with("code ");
        if is_end && is_start && !is_number && !ABBREVIATIONS.contains(&word) && at > start {
            sentences.push(text[start..at].trim());
            start = at + 1;
        }
    }
    sentences.push(text[start..].trim());
    sentences
}

#[test]
fn sentences_end_at_periods_before_capital_letters() {
    assert_eq!(sentences("One. Two e.g. Three. four 1. Five! Six"), ["One.", "Two e.g. Three. four 1. Five!", "Six"]);
    assert_eq!(sentences("Since 1970. Two"), ["Since 1970.", "Two"]);
    assert_eq!(without_code("a `b c. D` e"), "a code e");
}

#[test]
fn comments_are_recognized_in_every_language() {
    let text = |extension, line| comment_of(extension, line).map(|comment| comment.text.trim());
    assert_eq!(text("rs", "    /// What."), Some("What."));
    assert_eq!(text("rs", "// What."), None);
    assert_eq!(text("h", "/* How it ends. */"), Some("How it ends."));
    assert_eq!(text("c", " * When it ends."), Some("When it ends."));
    assert_eq!(text("c", "*to = record;"), None);
    assert_eq!(text("ts", "/** Whether it ends. */"), Some("Whether it ends."));
    assert_eq!(text("ts", "// Why it ends."), Some("Why it ends."));
}
