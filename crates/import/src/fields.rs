//! Event fields bound to the columns of one file, so that rows need no lookups by name.

use std::borrow::Cow;

use chrono_tz::Tz;
use tidegate_events::FinalState;

use crate::error::{ColumnType, ImportError, MissingColumn, Reject, RejectCode};
use crate::mapping::{Decode, FieldKind, FieldSpec, Mapping, TimeFormat, Unit};
use crate::rows::{Cell, Column, ColumnKind, Rows};
use crate::time::TimeReader;

/// A text field of an event.
#[derive(Debug, Default)]
pub(crate) struct TextField {
    origin: TextSource,
    default: Option<String>,
    pub(crate) decode: Option<Decode>,
}

#[derive(Debug, Default)]
enum TextSource {
    #[default]
    Absent,
    Column(usize),
    Pieces(Vec<Piece>),
}

#[derive(Debug)]
enum Piece {
    Literal(String),
    Column(usize),
}

/// A numeric field, converted to the event's unit.
#[derive(Debug)]
pub(crate) struct NumberField {
    pub(crate) columns: Vec<usize>,
    product: bool,
    scale: i64,
    pub(crate) decode: Option<Decode>,
    name: &'static str,
}

/// A time field: a column or a constant, plus a duration if given.
#[derive(Debug)]
pub(crate) struct TimeField {
    column: Option<usize>,
    constant_ms: Option<i64>,
    format: TimeFormat,
    plus: Option<NumberField>,
}

/// Meaning of a state name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    Running,
    Final(FinalState),
}

#[derive(Debug)]
struct StateName {
    /// Without the `*` of a prefix.
    text: String,
    prefix: bool,
    state: State,
}

/// Settings shared by all fields.
pub(crate) struct RowContext {
    nulls: Vec<String>,
    null_numbers: Vec<i64>,
    states: Vec<StateName>,
    skip: Vec<(usize, Vec<String>)>,
}

/// The current row, with the settings needed to read its cells.
#[derive(Clone, Copy)]
pub(crate) struct Row<'r> {
    pub(crate) context: &'r RowContext,
    pub(crate) rows: &'r dyn Rows,
}

/// Binds fields to the columns of one file.
pub(crate) struct ColumnBinder<'a> {
    pub(crate) mapping: &'a Mapping,
    pub(crate) file: &'a str,
    pub(crate) columns: &'a [Column],
}

impl ColumnBinder<'_> {
    pub(crate) fn context(&self) -> Result<RowContext, ImportError> {
        for group in &self.mapping.require_one_of {
            if !group.iter().any(|name| self.columns.iter().any(|column| column.name == *name)) {
                return Err(self.missing(&group.join(" or "), "this kind of row"));
            }
        }
        let skip = self.mapping.skip.iter().map(|skip| {
            let column = self.find(&skip.column).ok_or_else(|| self.missing(&skip.column, "[[skip]]"))?;
            Ok((column, skip.values.clone()))
        });
        let states = self.mapping.states.iter().map(|(name, state)| StateName {
            text: name.trim_end_matches('*').to_owned(),
            prefix: name.ends_with('*'),
            state: match state.as_str() {
                "PENDING" => State::Pending,
                "RUNNING" => State::Running,
                other => State::Final(other.parse().unwrap_or(FinalState::Unknown)),
            },
        });
        Ok(RowContext {
            nulls: self.mapping.null.clone(),
            null_numbers: self.mapping.null.iter().filter_map(|null| null.parse().ok()).collect(),
            states: states.collect(),
            skip: skip.collect::<Result<_, ImportError>>()?,
        })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub(crate) fn missing(&self, column: &str, field: &str) -> ImportError {
        let found = self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        ImportError::MissingColumn(Box::new(MissingColumn {
            file: self.file.into(),
            column: column.into(),
            mapping: self.mapping.name.clone(),
            field: field.into(),
            found,
            hint: self.mapping.hint.as_ref().map_or_else(String::new, |hint| format!("\n{hint}")),
        }))
    }

    /// The column's number; `None` if it is absent and optional.
    fn column(
        &self,
        name: &str,
        field: &str,
        kind: FieldKind,
        optional: bool,
    ) -> Result<Option<usize>, ImportError> {
        let Some(index) = self.find(name) else {
            return if optional { Ok(None) } else { Err(self.missing(name, field)) };
        };
        let found = self.columns[index].kind;
        let wanted = match (kind, found) {
            (_, ColumnKind::Other) => "text, a number or a time",
            (FieldKind::Number(_), ColumnKind::Time) => "a number",
            (FieldKind::Text, ColumnKind::Time) => "text or a number",
            (FieldKind::Number(_), ColumnKind::Text) if self.columns[index].type_name != "text" => "a number",
            _ => return Ok(Some(index)),
        };
        Err(ImportError::ColumnType(Box::new(ColumnType {
            file: self.file.into(),
            column: name.into(),
            mapping: self.mapping.name.clone(),
            field: field.into(),
            found: self.columns[index].type_name.clone(),
            wanted,
        })))
    }

    fn spec(&self, field: &str) -> Option<&FieldSpec> {
        self.mapping.columns.get(field)
    }

    pub(crate) fn text(&self, field: &str) -> Result<TextField, ImportError> {
        let default = self.mapping.defaults.get(field).cloned();
        let Some(spec) = self.spec(field) else {
            return Ok(TextField { default, ..TextField::default() });
        };
        let origin = match (&spec.column, &spec.template, &spec.value) {
            (Some(name), _, _) => self
                .column(name, field, FieldKind::Text, spec.optional || default.is_some())?
                .map_or(TextSource::Absent, TextSource::Column),
            (_, Some(template), _) => TextSource::Pieces(self.pieces(template, field)?),
            (_, _, value) => TextSource::Pieces(value.iter().cloned().map(Piece::Literal).collect()),
        };
        Ok(TextField { origin, default, decode: spec.decode })
    }

    fn pieces(&self, template: &str, field: &str) -> Result<Vec<Piece>, ImportError> {
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some((literal, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            pieces.push(Piece::Literal(literal.to_owned()));
            let column = self.find(name).ok_or_else(|| self.missing(name, field))?;
            pieces.push(Piece::Column(column));
            rest = after;
        }
        pieces.push(Piece::Literal(rest.to_owned()));
        Ok(pieces)
    }

    /// `unit` is the default unit of the numbers.
    pub(crate) fn number(&self, field: &'static str, unit: Unit) -> Result<Option<NumberField>, ImportError> {
        let Some(spec) = self.spec(field) else {
            return Ok(None);
        };
        let unit = spec.unit.unwrap_or(unit);
        let single: Vec<String> = spec.column.iter().cloned().collect();
        let names = spec.product.as_ref().or(spec.sum.as_ref()).unwrap_or(&single);
        // A decoder reads text, even if its result is a number.
        let kind = if spec.decode.is_some() { FieldKind::Text } else { FieldKind::Number(unit.dimension()) };
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            match self.column(name, field, kind, spec.optional)? {
                Some(column) => columns.push(column),
                None => return Ok(None),
            }
        }
        Ok(Some(NumberField {
            columns,
            product: spec.sum.is_none(),
            scale: unit.scale(),
            decode: spec.decode,
            name: field,
        }))
    }

    pub(crate) fn required_time(&self, field: &'static str) -> Result<TimeField, ImportError> {
        self.time(field)?.ok_or_else(|| self.missing(field, field))
    }

    pub(crate) fn time(&self, field: &'static str) -> Result<Option<TimeField>, ImportError> {
        let Some(spec) = self.spec(field) else {
            return Ok(None);
        };
        let format = spec.format.unwrap_or(self.mapping.time.format);
        if let Some(value) = &spec.value {
            // Times in the mapping itself are UTC unless they have an offset, whatever the file's
            // zone.
            let constant = TimeReader::new(Tz::UTC, 0).read(Cell::Text(value), TimeFormat::Auto);
            let constant_ms = constant
                .map_err(|reject| ImportError::Header { file: self.file.into(), what: reject.reason })?;
            return Ok(Some(TimeField { column: None, constant_ms, format, plus: None }));
        }
        let Some(name) = &spec.column else {
            return Ok(None);
        };
        let Some(column) = self.column(name, field, FieldKind::Time, spec.optional)? else {
            return Ok(None);
        };
        let plus = match (&spec.plus, spec.plus_unit) {
            (Some(name), Some(unit)) => {
                let kind = FieldKind::Number(unit.dimension());
                let Some(column) = self.column(name, field, kind, spec.optional)? else {
                    return Ok(None);
                };
                Some(NumberField {
                    columns: vec![column],
                    product: true,
                    scale: unit.scale(),
                    decode: None,
                    name: field,
                })
            }
            _ => None,
        };
        Ok(Some(TimeField { column: Some(column), constant_ms: None, format, plus }))
    }
}

impl<'r> Row<'r> {
    /// The cell, with the mapping's markers of unknown values turned into null.
    fn cell(self, column: usize) -> Cell<'r> {
        let cell = self.rows.cell(column);
        let null = match cell {
            Cell::Text(text) => self.context.nulls.iter().any(|null| null == text),
            Cell::Int(number) => self.context.null_numbers.contains(&number),
            Cell::Float(number) => number.is_nan(),
            _ => false,
        };
        if null { Cell::Null } else { cell }
    }
}

impl RowContext {
    /// Whether the mapping skips this row.
    pub(crate) fn skips(&self, rows: &dyn Rows) -> bool {
        self.skip.iter().any(|(column, values)| {
            as_text(rows.cell(*column)).is_some_and(|text| values.iter().any(|value| *value == text))
        })
    }

    /// State of a name, and the rest of the name after a prefix.
    pub(crate) fn state<'s>(&self, name: &'s str) -> Result<(State, Option<&'s str>), Reject> {
        for known in &self.states {
            let rest = name.strip_prefix(known.text.as_str());
            if let Some(rest) = rest.filter(|rest| known.prefix || rest.is_empty()) {
                return Ok((known.state, Some(rest).filter(|rest| !rest.is_empty())));
            }
        }
        if self.states.is_empty() {
            let upper = name.to_ascii_uppercase();
            match upper.as_str() {
                "PENDING" => return Ok((State::Pending, None)),
                "RUNNING" => return Ok((State::Running, None)),
                _ => {
                    if let Ok(state) = upper.parse() {
                        return Ok((State::Final(state), None));
                    }
                }
            }
        }
        Err(Reject::new(
            RejectCode::UnknownState,
            format!("state {name} is not in the mapping's [states]; add it there with a canonical state"),
        ))
    }
}

fn as_text(cell: Cell<'_>) -> Option<Cow<'_, str>> {
    match cell {
        Cell::Text(text) => Some(Cow::Borrowed(text)),
        Cell::Int(number) => Some(Cow::Owned(number.to_string())),
        Cell::Float(number) => Some(Cow::Owned(number.to_string())),
        Cell::Null | Cell::NaiveMs(_) | Cell::InstantMs(_) => None,
    }
}

impl TextField {
    pub(crate) fn read<'r>(&'r self, row: Row<'r>) -> Option<Cow<'r, str>> {
        let found = match &self.origin {
            TextSource::Absent => None,
            TextSource::Column(column) => as_text(row.cell(*column)),
            TextSource::Pieces(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Literal(literal) => text.push_str(literal),
                        Piece::Column(column) => text.push_str(&as_text(row.cell(*column))?),
                    }
                }
                Some(Cow::Owned(text))
            }
        };
        found.or_else(|| self.default.as_deref().map(Cow::Borrowed))
    }

    pub(crate) fn required<'r>(&'r self, field: &str, row: Row<'r>) -> Result<Cow<'r, str>, Reject> {
        self.read(row).filter(|text| !text.is_empty()).ok_or_else(|| missing(field))
    }

    /// The same text for every row.
    pub(crate) fn constant(value: &str) -> Self {
        Self { default: Some(value.to_owned()), ..Self::default() }
    }

    /// Whether any row can have a value.
    pub(crate) fn is_given(&self) -> bool {
        !matches!(self.origin, TextSource::Absent) || self.default.is_some()
    }
}

/// The text, owned.
pub(crate) fn owned(text: &TextField, row: Row<'_>) -> Option<String> {
    text.read(row).map(Cow::into_owned)
}

/// The number as an unsigned value; `None` if mapping or row lack it.
pub(crate) fn unsigned(number: Option<&NumberField>, row: Row<'_>) -> Result<Option<u64>, Reject> {
    let Some(value) = number.map_or(Ok(None), |number| number.read(row))? else {
        return Ok(None);
    };
    let negative =
        |_| Reject::new(RejectCode::BadNumber, format!("{value} is negative, and no number here can be"));
    u64::try_from(value).map(Some).map_err(negative)
}

/// The cluster of the rows: the given one, or what the mapping says.
pub(crate) fn cluster_field(
    binder: &ColumnBinder<'_>,
    cluster: Option<&str>,
) -> Result<TextField, ImportError> {
    let cluster = match cluster {
        Some(name) => TextField::constant(name),
        None => binder.text("cluster")?,
    };
    if cluster.is_given() {
        return Ok(cluster);
    }
    let (file, mapping) = (binder.file.into(), binder.mapping.name.clone());
    Err(ImportError::NoCluster { file, mapping })
}

/// Rejection of a row without a required value.
pub(crate) fn missing(field: &str) -> Reject {
    Reject::new(RejectCode::MissingValue, format!("{field} has no value, and a row needs one"))
}

impl NumberField {
    /// The value in the event's unit; `None` if any of the columns is empty.
    pub(crate) fn read(&self, row: Row<'_>) -> Result<Option<i64>, Reject> {
        let mut whole = Some(if self.product { 1_i64 } else { 0 });
        let mut approximate = if self.product { 1_f64 } else { 0.0 };
        for column in &self.columns {
            let (exact, value) = match row.cell(*column) {
                Cell::Null => return Ok(None),
                Cell::Int(number) => (Some(number), number as f64),
                Cell::Float(number) => (None, number),
                Cell::Text(text) => self.parse(text)?,
                Cell::NaiveMs(_) | Cell::InstantMs(_) => return Err(self.bad("a time")),
            };
            let combine = if self.product { i64::checked_mul } else { i64::checked_add };
            whole = whole.zip(exact).and_then(|(whole, exact)| combine(whole, exact));
            approximate = if self.product { approximate * value } else { approximate + value };
        }
        if let Some(scaled) = whole.and_then(|whole| whole.checked_mul(self.scale)) {
            return Ok(Some(scaled));
        }
        let scaled = (approximate * self.scale as f64).round();
        if scaled.abs() < 9e15 { Ok(Some(scaled as i64)) } else { Err(self.bad(&approximate.to_string())) }
    }

    /// Text of the first column, for decoders.
    pub(crate) fn raw_text<'r>(&self, row: Row<'r>) -> Option<&'r str> {
        match row.cell(*self.columns.first()?) {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }

    fn parse(&self, text: &str) -> Result<(Option<i64>, f64), Reject> {
        let text = text.trim();
        if let Ok(whole) = text.parse::<i64>() {
            return Ok((Some(whole), whole as f64));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok((None, number)),
            _ => Err(self.bad(text)),
        }
    }

    fn bad(&self, found: &str) -> Reject {
        Reject::new(RejectCode::BadNumber, format!("{} is {found}, which is not a usable number", self.name))
    }
}

impl TimeField {
    pub(crate) fn read(&self, row: Row<'_>, times: &mut TimeReader) -> Result<Option<i64>, Reject> {
        let time = match self.column {
            Some(column) => times.read(row.cell(column), self.format)?,
            None => self.constant_ms,
        };
        let (Some(time), Some(plus)) = (time, &self.plus) else {
            return Ok(time);
        };
        Ok(plus.read(row)?.map(|duration| time.saturating_add(duration)))
    }
}
