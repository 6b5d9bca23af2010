//! Writer of JSON text, piece by piece. Responses contain long lists, which would take too much memory as a tree of
//! JSON values.
//!
//! The caller writes brackets, commas and colons. This module escapes strings and formats numbers.

/// JSON text that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonText(Vec<u8>);

impl JsonText {
    /// Makes an empty text with a capacity of `bytes`.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Reserves capacity for more bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    /// Appends valid JSON without a change.
    #[inline]
    pub(crate) fn raw(&mut self, json: &str) -> &mut Self {
        self.0.extend_from_slice(json.as_bytes());
        self
    }

    /// Appends a string with quotes, and escapes its characters.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        // Most texts are short and need no escapes. Lists have millions of them.
        let is_escaped = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
        if !text.as_bytes().iter().any(is_escaped) {
            self.0.reserve(text.len() + 2);
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
            return self;
        }
        // Writing to memory cannot fail, and any text can be written.
        let _infallible = serde_json::to_writer(&mut self.0, text);
        self
    }

    /// Appends an integer.
    #[inline]
    pub(crate) fn number(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self
    }

    /// Appends a sum. Nearly all sums fit in 64 bits, which are formatted faster.
    #[inline]
    pub(crate) fn sum(&mut self, sum: i128) -> &mut Self {
        match i64::try_from(sum) {
            Ok(short) => self.number(short),
            Err(_long) => self.number(sum),
        }
    }

    /// Appends another JSON text.
    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// Appends a list, with commas between its items.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.raw("[");
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.raw(",");
            }
            write(self, item);
        }
        self.raw("]")
    }

    /// Appends an object whose values are strings.
    pub(crate) fn object<'a>(&mut self, members: impl IntoIterator<Item = (&'a str, &'a str)>) -> &mut Self {
        self.raw("{");
        for (i, (name, value)) in members.into_iter().enumerate() {
            self.raw(if i > 0 { "," } else { "" }).text(name).raw(":").text(value);
        }
        self.raw("}")
    }

    /// Length of the text, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_json_parses_to_the_same_values() {
        let mut json = JsonText::default();
        json.list([i128::MIN, -1, 0, i128::from(i64::MAX) + 1], |json, sum| {
            json.sum(sum);
        });
        assert_eq!(
            String::from_utf8(json.into_bytes()).unwrap(),
            "[-170141183460469231731687303715884105728,-1,0,9223372036854775808]"
        );
        let hostile = "\"\\\n\u{0}</script>\u{2028}ü";
        let mut json = JsonText::default();
        json.object([(hostile, hostile), ("", "")]);
        let read: serde_json::Value = serde_json::from_slice(&json.into_bytes()).unwrap();
        assert_eq!(read, serde_json::json!({hostile: hostile, "": ""}));
    }
}
