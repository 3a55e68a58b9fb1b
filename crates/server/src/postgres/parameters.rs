//! Values of parameters, as Postgres' messages have them.

use std::sync::Arc;

use arrow::datatypes::DataType;
use arrow_pg::datatypes::df::deserialize_parameters;
use datafusion::common::ParamValues;
use pgwire::api::Type;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::stmt::StoredStatement;

use crate::error::QueryError;
use crate::question::Bound;

/// The values for parameters of these types.
///
/// # Errors
/// Their number differs, or one is no value of its parameter's type.
pub(crate) fn values(bound: &Bound, types: &[Option<DataType>]) -> Result<ParamValues, QueryError> {
    let given = bound.values.len();
    if given != types.len() {
        let wanted = types.len();
        return Err(QueryError::Invalid(format!("it has {wanted} parameters, and {given} values were sent")));
    }
    let of = |at: usize| {
        let known =
            bound.types.get(at).and_then(|oid| Type::from_oid(*oid)).filter(|of| *of != Type::UNKNOWN);
        // Where neither client nor query say what it is, it is text.
        known.or_else(|| types[at].is_none().then_some(Type::TEXT))
    };
    let known = (0..given).map(of).collect();
    let mut portal = Portal::<()>::default();
    portal.statement = Arc::new(StoredStatement::new(String::new(), (), known));
    portal.parameter_format = format_of(&bound.formats, given)?;
    portal.parameters = bound.values.iter().map(|value| value.clone().map(Into::into)).collect();
    let types: Vec<Option<&DataType>> = types.iter().map(Option::as_ref).collect();
    deserialize_parameters(&portal, &types)
        .map_err(|error| QueryError::Invalid(format!("a parameter's value: {error}")))
}

/// Format codes for so many values or columns.
///
/// # Errors
/// There is neither one for each, nor one or none for all.
pub(super) fn format_of(codes: &[i16], of: usize) -> Result<Format, QueryError> {
    match codes {
        [] => Ok(Format::UnifiedText),
        [code] => Ok(Format::from(*code)),
        codes if codes.len() == of => Ok(Format::Individual(codes.to_vec())),
        codes => Err(QueryError::Invalid(format!("{} format codes were sent for {of}", codes.len()))),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::ScalarValue;

    use super::*;

    fn of(bound: Bound, types: &[Option<DataType>]) -> Result<Vec<ScalarValue>, String> {
        match values(&bound, types).map_err(|error| error.to_string())? {
            ParamValues::List(list) => Ok(list.into_iter().map(|value| value.value).collect()),
            ParamValues::Map(_) => Err("a map".into()),
        }
    }

    #[test]
    fn values_take_the_type_of_the_client_or_of_the_query() {
        let text = |value: &str| Some(value.as_bytes().to_vec());
        let bound = Bound { values: vec![text("7"), text("x"), None], ..Bound::default() };
        let types = [Some(DataType::Int64), None, Some(DataType::Int64)];
        let seven = ScalarValue::Int64(Some(7));
        let rest = [ScalarValue::Utf8(Some("x".into())), ScalarValue::Int64(None)];
        assert_eq!(of(bound, &types), Ok([seven.clone()].into_iter().chain(rest).collect()));
        let binary = Bound { types: vec![21], formats: vec![1], values: vec![Some(vec![0, 7])] };
        assert_eq!(of(binary, &[Some(DataType::Int64)]), Ok(vec![seven]));
    }

    #[test]
    fn wrong_values_are_refused() {
        let one = |formats: Vec<i16>, value: &[u8]| Bound {
            types: vec![20],
            formats,
            values: vec![Some(value.to_vec())],
        };
        let int = [Some(DataType::Int64)];
        for (bound, says) in [
            (one(vec![], b"seven"), "a parameter's value"),
            (one(vec![1], b"\0\x07"), "a parameter's value"),
            (one(vec![0, 0, 0], b"7"), "3 format codes were sent for 1"),
            (Bound::default(), "it has 1 parameters, and 0 values were sent"),
        ] {
            let refused = of(bound, &int).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
