//! Locations of a request's dictionary, with their functions and mappings. Computes the hash that identifies each
//! location, and defines the location if necessary.

use proto::build_id::from_hex;
use proto::dictionary::{AttributeValue, address_hash, function_hash, lines_hash};
use proto::{Address, BuildId, Function, Line, Location, Mapping, limits};

use super::dictionary::RequestDictionary;
use super::entry::{FrameType, MappingIds, RawFunction, RawLine, RawLocation, Scratch};
use crate::ingest::decode::protobuf::Fields;
use crate::ingest::error::ProfileError;
use crate::ingest::normalize::builder::{Builder, KERNEL_FRAME_TYPE, check_build_id};
use crate::ingest::normalize::frames::Frame;

impl<'a> RequestDictionary<'a> {
    /// Returns the frame of a location. This is the slow path, for a location that was not read yet or is invalid.
    #[inline(never)]
    pub(super) fn frame(&mut self, builder: &mut Builder, index: i64) -> Result<Frame, ProfileError> {
        let (at, entry) = self.locations.get(index)?;
        if let Some(known) = self.locations.known(at) {
            return known;
        }
        let read = self.read_frame(builder, entry);
        self.locations.remember(at, read)
    }

    fn read_frame(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<Frame, ProfileError> {
        let RawLocation { mapping, address } = self.read_location(entry)?;
        let frame_type = self.frame_type(builder)?;
        let mapping = self.mapping(builder, mapping)?;
        let dictionary = builder.dictionary();
        let frame_type_hash = dictionary.strings.hash(frame_type.id);
        if self.scratch.lines.is_empty() {
            let mapping = dictionary.mapping_hash(mapping.id);
            let hash = address_hash(mapping, frame_type_hash, Address::Virtual(address));
            return Ok(Frame { hash, is_kernel: frame_type.is_kernel });
        }
        let file_hash = dictionary.strings.hash(mapping.file);
        let lines = std::mem::take(&mut self.scratch.lines);
        let mut hashed = std::mem::take(&mut self.scratch.hashed);
        let mut refused = None;
        let hashes = lines.iter().map(|line| {
            let function = self.function_hash(builder, line.function).unwrap_or_else(|error| {
                refused = Some(error);
                0
            });
            (function, line.line, line.column)
        });
        let hash = lines_hash(file_hash, frame_type_hash, hashes, &mut hashed);
        (self.scratch.lines, self.scratch.hashed) = (lines, hashed);
        refused.map_or(Ok(Frame { hash, is_kernel: frame_type.is_kernel }), Err)
    }

    /// Defines a location of the location table and returns its ID.
    pub(super) fn location(&mut self, builder: &mut Builder, index: i64) -> Result<u32, ProfileError> {
        let known = self.locations.read(index);
        if let Some(id) = known.and_then(|frame| builder.dictionary().locations.find(frame.hash)) {
            return Ok(id);
        }
        let (_, entry) = self.locations.get(index)?;
        let RawLocation { mapping, address } = self.read_location(entry)?;
        let frame_type = self.frame_type(builder)?.id;
        let mapping = self.mapping(builder, mapping)?;
        if self.scratch.lines.is_empty() {
            let address = Address::Virtual(address);
            return builder.location(Location::Address { mapping: mapping.id, address, frame_type });
        }
        let raw = std::mem::take(&mut self.scratch.lines);
        let lines = raw.iter().map(|&RawLine { function, line, column }| {
            Ok(Line { function: self.function(builder, function)?, line, column })
        });
        let lines = lines.collect::<Result<_, ProfileError>>()?;
        self.scratch.lines = raw;
        builder.location(Location::Lines { mapping_file: mapping.file, frame_type, lines })
    }

    fn read_location(&mut self, entry: &[u8]) -> Result<RawLocation, ProfileError> {
        let Scratch { lines, attributes, .. } = &mut self.scratch;
        lines.clear();
        attributes.clear();
        let mut location = RawLocation::default();
        for field in Fields::new(entry) {
            match field? {
                (1, value) => location.mapping = value.int64(1)?,
                (2, value) => location.address = value.varint(2)?,
                (3, value) if lines.len() < limits::LOCATION_LINES_MAX => lines.push(RawLine::read(value.bytes(3)?)?),
                (3, _) => {
                    return Err(ProfileError::TooMany {
                        what: "lines in one location",
                        count_max: limits::LOCATION_LINES_MAX,
                    });
                }
                (4, value) => value.varints(4, attributes)?,
                _ => {}
            }
        }
        Ok(location)
    }

    /// Returns the frame type of the location that was read last; `native` if the location has neither a type nor
    /// lines.
    fn frame_type(&mut self, builder: &mut Builder) -> Result<FrameType, ProfileError> {
        if let (&[index], Some((last, frame_type))) = (self.scratch.attributes.as_slice(), self.last_frame_type)
            && index == last
        {
            return Ok(frame_type);
        }
        for at in 0..self.scratch.attributes.len() {
            let index = self.scratch.attributes[at];
            let attribute = self.attribute(builder, index.cast_signed())?;
            let strings = &builder.dictionary().strings;
            if let ("profile.frame.type", AttributeValue::Text(id)) = (strings.get(attribute.key), attribute.value) {
                let frame_type = FrameType { id, is_kernel: strings.get(id) == KERNEL_FRAME_TYPE };
                self.last_frame_type = Some((index, frame_type));
                return Ok(frame_type);
            }
        }
        let id = if self.scratch.lines.is_empty() { builder.text(b"native") } else { 0 };
        Ok(FrameType { id, is_kernel: false })
    }

    fn function_hash(&mut self, builder: &mut Builder, index: i64) -> Result<u128, ProfileError> {
        if let Some(known) = self.functions.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.functions.get(index)?;
        if let Some(known) = self.functions.known(at) {
            return known;
        }
        let read = self.read_function_hash(builder, entry);
        self.functions.remember(at, read)
    }

    fn read_function_hash(&mut self, builder: &mut Builder, entry: &[u8]) -> Result<u128, ProfileError> {
        let RawFunction { texts: [name, system_name, file], start_line } = RawFunction::read(entry)?;
        let texts = [
            self.string_hash(builder, name)?,
            self.string_hash(builder, system_name)?,
            self.string_hash(builder, file)?,
        ];
        Ok(function_hash(texts, start_line))
    }

    /// Defines a function of the function table and returns its ID.
    fn function(&mut self, builder: &mut Builder, index: i64) -> Result<u32, ProfileError> {
        let known = self.functions.read(index);
        if let Some(id) = known.and_then(|hash| builder.dictionary().functions.find(hash)) {
            return Ok(id);
        }
        let (_, entry) = self.functions.get(index)?;
        let RawFunction { texts: [name, system_name, file], start_line } = RawFunction::read(entry)?;
        let function = Function {
            name: self.string(builder, name)?,
            system_name: self.string(builder, system_name)?,
            file: self.string(builder, file)?,
            start_line,
        };
        Ok(builder.dictionary().intern_function(function))
    }

    fn mapping(&mut self, builder: &mut Builder, index: i64) -> Result<MappingIds, ProfileError> {
        if let Some(known) = self.mappings.read(index) {
            return Ok(known);
        }
        let (at, entry) = self.mappings.get(index)?;
        if let Some(known) = self.mappings.known(at) {
            return known;
        }
        let read = self.read_mapping(builder, entry);
        self.mappings.remember(at, read)
    }

    fn read_mapping(&mut self, builder: &mut Builder, entry: &'a [u8]) -> Result<MappingIds, ProfileError> {
        let mut file = 0;
        let mut attributes = Vec::new();
        for field in Fields::new(entry) {
            match field? {
                (4, value) => file = value.int64(4)?,
                (5, value) => value.varints(5, &mut attributes)?,
                _ => {}
            }
        }
        let file = self.string(builder, file)?;
        let build_id = self.build_id(builder, &attributes)?;
        Ok(MappingIds { id: builder.dictionary().intern_mapping(Mapping { build_id, file }), file })
    }

    /// Returns the build ID in these attributes. Prefers the GNU build ID, which identifies debug files; then the build
    /// ID of Go; then the hash of the file.
    fn build_id(&mut self, builder: &mut Builder, attributes: &[u64]) -> Result<Option<BuildId>, ProfileError> {
        // This loop only finds the IDs of the texts: a mapping may refer to one attribute any number of times.
        let mut found: [Option<u32>; 3] = [None, None, None];
        for &index in attributes {
            let attribute = self.attribute(builder, index.cast_signed())?;
            let AttributeValue::Text(text) = attribute.value else { continue };
            let kind = match builder.dictionary().strings.get(attribute.key) {
                "process.executable.build_id.gnu" => 0,
                "process.executable.build_id.go" => 1,
                // The second name is an older one for the same attribute.
                "process.executable.build_id.htlhash" | "process.executable.build_id.profiling" => 2,
                _ => continue,
            };
            found[kind] = Some(text);
        }
        let strings = &builder.dictionary().strings;
        for id in found.into_iter().flatten() {
            check_build_id(strings.get(id).len())?;
        }
        let text = |id: Option<u32>| id.map(|id| strings.get(id)).filter(|text| !text.is_empty());
        let gnu = text(found[0]).and_then(from_hex).map(BuildId::Gnu);
        let go = || text(found[1]).map(|text| BuildId::Go(text.to_owned()));
        let hash = || text(found[2]).and_then(from_hex)?.try_into().ok().map(BuildId::Htlhash);
        Ok(gnu.or_else(go).or_else(hash))
    }
}
