//! Macros for types with a JSON form of their own.

/// Declares an enum whose variants are words in JSON, with the list of all variants and the word of each.
#[macro_export]
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$of_variant:meta])* $variant:ident = $word:tt,)* }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $name {
            $($(#[$of_variant])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All variants, in order.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// The word in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

/// Makes a type text in JSON: `$parse` reads it, `Display` writes it.
macro_rules! text_type {
    ($name:ident, $parse:path, $error:ty, $schema:tt) => {
        impl TryFrom<String> for $name {
            type Error = $error;
            fn try_from(text: String) -> Result<Self, $error> {
                $parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        $crate::wire::schema_of!($name, $schema);
    };
}

/// Gives a type with its own JSON form its schema.
macro_rules! schema_of {
    ($name:ident, $schema:tt) => {
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

pub(crate) use {schema_of, text_type};
