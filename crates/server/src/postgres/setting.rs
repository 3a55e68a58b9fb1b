//! `current_setting(name)`: what `SHOW name` says, within a query.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::cast::as_string_array;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

use super::statement::SETTINGS;

/// The function. A setting that is not known is NULL, whether its absence was asked for or not.
pub(super) fn current_setting() -> ScalarUDF {
    let name = vec![DataType::Utf8];
    let or_missing = vec![DataType::Utf8, DataType::Boolean];
    let signatures = vec![TypeSignature::Exact(name), TypeSignature::Exact(or_missing)];
    ScalarUDF::from(CurrentSetting(Signature::one_of(signatures, Volatility::Stable)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CurrentSetting(Signature);

impl ScalarUDFImpl for CurrentSetting {
    fn name(&self) -> &str {
        "current_setting"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let names = args.args[0].to_array(args.number_rows)?;
        let value = |name: &str| {
            SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
        };
        let values: StringArray = as_string_array(&names)?.iter().map(|name| name.and_then(value)).collect();
        Ok(ColumnarValue::Array(Arc::new(values) as ArrayRef))
    }
}
