//! Functions of Postgres about what there is none of here, each with one answer.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

/// Says whether a name is found without its schema: all are.
const VISIBLE: [&str; 6] = [
    "pg_collation_is_visible",
    "pg_conversion_is_visible",
    "pg_function_is_visible",
    "pg_opclass_is_visible",
    "pg_operator_is_visible",
    "pg_type_is_visible",
];
/// Texts that no object here has: descriptions, definitions, sizes.
const NO_TEXT: [&str; 14] = [
    "col_description",
    "json_build_object",
    "obj_description",
    "pg_get_function_arguments",
    "pg_get_function_result",
    "pg_get_functiondef",
    "pg_get_indexdef",
    "pg_get_ruledef",
    "pg_get_serial_sequence",
    "pg_get_triggerdef",
    "pg_get_viewdef",
    "pg_size_pretty",
    "pg_tablespace_location",
    "shobj_description",
];
/// Sizes on disk, which are not those of one table, and places in a list of a key's columns, of
/// which there are none.
const NO_SIZE: [&str; 3] = ["pg_database_size", "pg_indexes_size", "pg_table_size"];
const NO_PLACE: [&str; 1] = ["generate_subscripts"];
/// Object identifiers of what does not exist.
const NO_OBJECT: [&str; 3] = ["pg_my_temp_schema", "to_regnamespace", "to_regtype"];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = ScalarUDF> {
    let visible = VISIBLE.map(|name| (name, ScalarValue::Boolean(Some(true))));
    let texts = NO_TEXT.map(|name| (name, ScalarValue::Utf8(None)));
    let objects = NO_OBJECT.map(|name| (name, ScalarValue::Int32(None)));
    let sizes = NO_SIZE.map(|name| (name, ScalarValue::Int64(None)));
    let places = NO_PLACE.map(|name| (name, ScalarValue::Int32(None)));
    let others = [
        ("pg_advisory_unlock_all", ScalarValue::Utf8(Some(String::new()))),
        ("pg_is_in_recovery", ScalarValue::Boolean(Some(false))),
    ];
    let all = visible.into_iter().chain(texts).chain(objects).chain(sizes).chain(places).chain(others);
    all.map(|(name, value)| {
        let any = vec![TypeSignature::Nullary, TypeSignature::VariadicAny];
        let signature = Signature::one_of(any, Volatility::Stable);
        ScalarUDF::from(Constant { name, value, signature })
    })
}

/// A function of any arguments with one answer.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Constant {
    name: &'static str,
    value: ScalarValue,
    signature: Signature,
}

impl ScalarUDFImpl for Constant {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.value.data_type())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }
}
