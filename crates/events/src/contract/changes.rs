//! Compares two states of the contract, by the rules of `schemas/README.md`: only additions are
//! free.

use prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, FileDescriptor,
    MessageDescriptor,
};

use super::{Change, Effect, shape};

/// All that differs between two states of the contract, the worst first, then in the order of the
/// old files.
///
/// Where a package was renamed nothing else is compared, as every name begins with it.
pub fn changes(old: &DescriptorPool, new: &DescriptorPool) -> Vec<Change> {
    let mut found = Found::default();
    old.files().for_each(|file| found.package(&file, new));
    if found.0.is_empty() {
        old.files().for_each(|file| found.file(&file, new));
        old.all_messages().for_each(|message| found.message(&message, new));
        old.all_enums().for_each(|kinds| found.kinds(&kinds, new));
        new.all_messages().for_each(|message| found.new_message(&message, old));
        new.all_enums().for_each(|kinds| found.new_kinds(&kinds, old));
    }
    found.0.sort_by_key(|change| change.effect);
    found.0
}

/// A field of a message or a value of an enum.
struct Entry {
    number: i64,
    name: String,
    /// See [`shape`]; values have none.
    shape: String,
}

/// Where entries stand, and what they are called.
struct Place<'a> {
    file: String,
    owner: &'a str,
    /// `field` or `value`.
    entry: &'a str,
}

#[derive(Default)]
struct Found(Vec<Change>);

impl Found {
    fn add(&mut self, effect: Effect, file: &FileDescriptor, place: &str, what: impl Into<String>) {
        let (file, place) = (file.name().to_owned(), place.to_owned());
        self.0.push(Change { effect, file, place, what: what.into() });
    }

    fn package(&mut self, old: &FileDescriptor, new: &DescriptorPool) {
        let package = old.package_name();
        match new.get_file_by_name(old.name()) {
            Some(file) if file.package_name() != package => {
                let now = file.package_name();
                let what = format!(
                    "the package was {package}, is {now}: other programs know every message by it; name it {package} again"
                );
                self.add(Effect::Breaks, old, "", what);
            }
            _ => {}
        }
    }

    /// The first message of a file is found by its place, all others by their names.
    fn file(&mut self, old: &FileDescriptor, new: &DescriptorPool) {
        let Some(file) = new.get_file_by_name(old.name()) else {
            return self.add(Effect::Breaks, old, "", "the file is gone or renamed; put it back");
        };
        let Some(first) = old.messages().next() else { return };
        let exists = file.messages().any(|message| message.full_name() == first.full_name());
        if let Some(before) =
            file.messages().next().filter(|now| exists && now.full_name() != first.full_name())
        {
            let what = format!(
                "is not the first message of its file any more, by which readers of a topic find it; move {} behind it",
                before.name()
            );
            self.add(Effect::Breaks, old, first.name(), what);
        }
    }

    fn message(&mut self, old: &MessageDescriptor, new: &DescriptorPool) {
        let (file, owner) = (old.parent_file(), local(old.full_name(), old.package_name()));
        let Some(now) = new.get_message_by_name(old.full_name()) else {
            let with_its_owner = old.parent_message().is_some_and(|owner| !has_message(new, &owner));
            if !with_its_owner && new.get_file_by_name(file.name()).is_some() {
                self.add(Effect::Breaks, &file, owner, "the message is gone or renamed; put it back");
            }
            return;
        };
        let place = Place { file: file.name().into(), owner, entry: "field" };
        let fields: Vec<_> = old.fields().map(field).collect();
        for added in self.entries(&place, &fields, now.fields().map(field).collect()) {
            if let Some(field) = now.get_field_by_name(&added.name) {
                let (effect, what) = addition(&field, old);
                self.add(effect, &file, &format!("{owner}.{}", added.name), what);
            }
        }
        for field in old.fields() {
            let now = now.get_field(field.number()).filter(|now| now.name() == field.name());
            if now.is_some_and(|now| one_of(&now) != one_of(&field)) {
                let what = "went into a oneof, or out of one, where setting one field unsets the others; put it back";
                self.add(Effect::Breaks, &file, &format!("{owner}.{}", field.name()), what);
            }
        }
    }

    fn kinds(&mut self, old: &EnumDescriptor, new: &DescriptorPool) {
        let (file, owner) = (old.parent_file(), local(old.full_name(), old.package_name()));
        let Some(now) = new.get_enum_by_name(old.full_name()) else {
            let with_its_owner = old.parent_message().is_some_and(|owner| !has_message(new, &owner));
            if !with_its_owner && new.get_file_by_name(file.name()).is_some() {
                self.add(Effect::Breaks, &file, owner, "the enum is gone or renamed; put it back");
            }
            return;
        };
        let place = Place { file: file.name().into(), owner, entry: "value" };
        let values: Vec<_> = old.values().map(value).collect();
        for added in self.entries(&place, &values, now.values().map(value).collect()) {
            let what = format!(
                "new value, number {}: readers of the old version do not know it, and make a dead letter of an event of unknown kind; upgrade them before anyone writes it",
                added.number
            );
            self.add(Effect::Warns, &file, &format!("{owner}.{}", added.name), what);
        }
    }

    /// Reports changes of the old entries, and returns the new ones.
    fn entries(&mut self, place: &Place<'_>, old: &[Entry], new: Vec<Entry>) -> Vec<Entry> {
        let Place { file, owner, entry } = place;
        let mut breaks = |name: &str, what: String| {
            let (file, place) = (file.clone(), format!("{owner}.{name}"));
            self.0.push(Change { effect: Effect::Breaks, file, place, what });
        };
        let named = |entries: &[Entry], name: &str| entries.iter().any(|entry| entry.name == name);
        let renamed = |before: &Entry, now: &Entry| {
            before.shape == now.shape && !named(old, &now.name) && !named(&new, &before.name)
        };
        for before in old {
            let Entry { number, name, shape } = before;
            let holder = new.iter().find(|now| now.number == *number);
            let moved = new.iter().find(|now| now.name == *name && now.number != *number);
            let what = match (holder, moved) {
                (Some(now), _) if now.name == *name && now.shape == *shape => continue,
                (Some(now), _) if now.name == *name => format!(
                    "was {shape}, is {}: events that exist are read wrongly; make it {shape} again, and add a {entry} for what is new",
                    now.shape
                ),
                (_, Some(now)) => format!(
                    "had number {number}, has {}: events that exist hold it under {number}; give it its number back",
                    now.number
                ),
                (Some(now), None) if renamed(before, now) => format!(
                    "is called {} now: who reads by names, as JSON and SQL do, finds it no more; call it {name} again",
                    now.name
                ),
                _ => format!(
                    "the {entry} is gone: events that exist hold it; put it back as number {number}, even if nobody writes it any more"
                ),
            };
            breaks(name, what);
        }
        for now in new.iter().filter(|now| !named(old, &now.name)) {
            let before = old.iter().find(|before| before.number == now.number);
            if let Some(before) = before.filter(|before| !renamed(before, now)) {
                let what = format!(
                    "takes number {}, which is {}'s in events that exist; take a number that was never used",
                    now.number, before.name
                );
                breaks(&now.name, what);
            }
        }
        let is_new =
            |now: &Entry| !old.iter().any(|before| before.name == now.name || before.number == now.number);
        new.into_iter().filter(is_new).collect()
    }

    fn new_message(&mut self, new: &MessageDescriptor, old: &DescriptorPool) {
        let inside = new.parent_message().is_some_and(|owner| !has_message(old, &owner));
        let imported = new.package_name().starts_with("google.protobuf");
        if !has_message(old, new) && !inside && !imported {
            let name = local(new.full_name(), new.package_name());
            self.add(Effect::Adds, &new.parent_file(), name, "new message");
        }
    }

    fn new_kinds(&mut self, new: &EnumDescriptor, old: &DescriptorPool) {
        let inside = new.parent_message().is_some_and(|owner| !has_message(old, &owner));
        if old.get_enum_by_name(new.full_name()).is_none() && !inside {
            let name = local(new.full_name(), new.package_name());
            self.add(Effect::Adds, &new.parent_file(), name, "new enum");
        }
    }
}

/// What a new field of an old message means.
fn addition(field: &FieldDescriptor, old: &MessageDescriptor) -> (Effect, String) {
    let (number, shape) = (field.number(), shape(field));
    let reserved = old.reserved_ranges().any(|range| range.contains(&number))
        || old.reserved_names().any(|name| name == field.name());
    let singular = field.cardinality() == Cardinality::Optional;
    if reserved {
        let what = format!(
            "number {number} or the name is reserved, as it was used once: events that exist may hold it; take a number and a name that were never used"
        );
        (Effect::Breaks, what)
    } else if field.cardinality() == Cardinality::Required {
        (
            Effect::Breaks,
            "is required: events that exist lack it and would be refused; make it optional".into(),
        )
    } else if singular && !field.supports_presence() {
        let what = format!(
            "new field, {shape}, number {number}: events without it read as zero or empty, as if that were known; make it optional"
        );
        (Effect::Warns, what)
    } else {
        (Effect::Adds, format!("new field, {shape}, number {number}"))
    }
}

fn field(field: FieldDescriptor) -> Entry {
    Entry { number: field.number().into(), name: field.name().into(), shape: shape(&field) }
}

fn value(value: EnumValueDescriptor) -> Entry {
    Entry { number: value.number().into(), name: value.name().into(), shape: String::new() }
}

/// Name of the oneof that a field is in; what the compiler makes for `optional` is none.
fn one_of(field: &FieldDescriptor) -> Option<String> {
    let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
    oneof.map(|oneof| oneof.name().to_owned())
}

fn has_message(pool: &DescriptorPool, message: &MessageDescriptor) -> bool {
    pool.get_message_by_name(message.full_name()).is_some()
}

/// A name without its package.
fn local<'a>(full: &'a str, package: &str) -> &'a str {
    full.strip_prefix(package).map_or(full, |name| name.trim_start_matches('.'))
}
