//! Names and addresses of hosts, and which of them effectd may dial.
//!
//! The rules are those of a broker that resolves a name once and dials the very address that it judged: a name has one spelling,
//! and an address has one class, however it is written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::wire::schema_of;

/// Longest name of a host, by DNS.
const NAME_BYTES_MAX: usize = 253;
/// Longest label of a name, by DNS.
const LABEL_BYTES_MAX: usize = 63;

/// A host as a connection names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name to resolve, in small letters.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// Text that names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostInvalid {
    /// No text, too much, or an empty or long label.
    #[error(
        "a host has labels of 1 to {LABEL_BYTES_MAX} characters, {NAME_BYTES_MAX} in all, with single dots between them"
    )]
    Length,
    /// Letters beyond ASCII: many look alike, and programs translate them differently.
    #[error("a host is written in ASCII; write a name in another script as xn--…")]
    Script,
    /// Anything else that a name does not have, such as a port, a bracket or a NUL.
    #[error("a host has only small letters, digits, hyphens and dots")]
    Character,
    /// Programs read `127.1`, `0x7f.0.0.1`, `2130706433` and `0177.0.0.1` as addresses, but not all the same.
    #[error(
        "this looks like an address, and is not written as one: use four decimal numbers without leading zeros"
    )]
    Number,
    /// An address of one interface, such as `fe80::1%eth0`.
    #[error("an address must not name an interface")]
    Scope,
}

impl Host {
    /// Reads a host. One that other programs could read differently is refused.
    pub fn parse(text: &str) -> Result<Self, HostInvalid> {
        if !text.is_ascii() {
            return Err(HostInvalid::Script);
        }
        if text.contains('%') {
            return Err(HostInvalid::Scope);
        }
        if text.contains(':') {
            let address: Ipv6Addr = text.parse().map_err(|_| HostInvalid::Character)?;
            return Ok(Self::Address(IpAddr::V6(address)));
        }
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !text.bytes().all(|byte| is_part(byte) || byte == b'.') {
            return Err(HostInvalid::Character);
        }
        let is_long = |label: &str| label.is_empty() || label.len() > LABEL_BYTES_MAX;
        if text.len() > NAME_BYTES_MAX || text.split('.').any(is_long) {
            return Err(HostInvalid::Length);
        }
        if text.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
            return Err(HostInvalid::Character);
        }
        if text.rsplit('.').next().is_some_and(is_number) {
            let address: Ipv4Addr = text.parse().map_err(|_| HostInvalid::Number)?;
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// Whether some program reads a name that ends in this label as a number.
fn is_number(label: &str) -> bool {
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    label.bytes().all(|byte| byte.is_ascii_digit()) || label.strip_prefix("0x").is_some_and(is_hex)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

crate::wire_enum! {
    /// What an address is for.
    pub enum AddressClass {
        /// Any host of the internet.
        Public = "public",
        /// This machine.
        Loopback = "loopback",
        /// A network of one house or firm.
        Private = "private",
        /// A provider's network for its customers.
        Shared = "shared",
        /// A service by which a cloud tells a machine its own credentials.
        Metadata = "metadata",
        /// One cable, without a router.
        LinkLocal = "link_local",
        /// Many hosts at once.
        Multicast = "multicast",
        /// Another address in disguise: a translator or a tunnel decides where it leads.
        Translated = "translated",
        /// Examples and measurements.
        Documentation = "documentation",
        /// None of these, or not assigned.
        Reserved = "reserved",
    }
}

impl AddressClass {
    /// Whether a connection may allow a range of these addresses.
    pub const fn may_be_allowed(self) -> bool {
        match self {
            Self::Loopback | Self::Private | Self::Shared => true,
            Self::Public
            | Self::Metadata
            | Self::LinkLocal
            | Self::Multicast
            | Self::Translated
            | Self::Documentation
            | Self::Reserved => false,
        }
    }

    /// The class of an address. One that maps an IPv4 address is judged by that address.
    pub fn of(address: IpAddr) -> Self {
        let (bits, ranges) = match canonical(address) {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, V4),
            IpAddr::V6(address) => (address.to_bits(), V6),
        };
        let found = ranges.iter().find(|(prefix, length, _)| (bits ^ prefix) & mask(*length) == 0);
        found.map_or(Self::Public, |(_, _, class)| *class)
    }
}

/// The address that is dialled: an IPv4 address that is written as an IPv6 address is itself.
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

const fn mask(length: u32) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - length) }
}

type Ranges = &'static [(u128, u32, AddressClass)];

/// Ranges of IPv4; the first that matches decides. Addresses are the upper bits.
const V4: Ranges = &[
    (v4(169, 254, 169, 254), 32, AddressClass::Metadata),
    (v4(169, 254, 170, 2), 32, AddressClass::Metadata),
    (v4(100, 100, 100, 200), 32, AddressClass::Metadata),
    (v4(192, 0, 0, 192), 32, AddressClass::Metadata),
    (v4(168, 63, 129, 16), 32, AddressClass::Metadata),
    (v4(0, 0, 0, 0), 8, AddressClass::Reserved),
    (v4(10, 0, 0, 0), 8, AddressClass::Private),
    (v4(100, 64, 0, 0), 10, AddressClass::Shared),
    (v4(127, 0, 0, 0), 8, AddressClass::Loopback),
    (v4(169, 254, 0, 0), 16, AddressClass::LinkLocal),
    (v4(172, 16, 0, 0), 12, AddressClass::Private),
    (v4(192, 0, 0, 0), 24, AddressClass::Reserved),
    (v4(192, 0, 2, 0), 24, AddressClass::Documentation),
    (v4(192, 88, 99, 0), 24, AddressClass::Translated),
    (v4(192, 168, 0, 0), 16, AddressClass::Private),
    (v4(198, 18, 0, 0), 15, AddressClass::Documentation),
    (v4(198, 51, 100, 0), 24, AddressClass::Documentation),
    (v4(203, 0, 113, 0), 24, AddressClass::Documentation),
    (v4(224, 0, 0, 0), 4, AddressClass::Multicast),
    (v4(240, 0, 0, 0), 4, AddressClass::Reserved),
];

/// Ranges of IPv6; the first that matches decides. What no registry gives out (all but `2000::/3`) is reserved.
const V6: Ranges = &[
    (v6([0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254]), 128, AddressClass::Metadata),
    (v6([0, 0, 0, 0, 0, 0, 0, 1]), 128, AddressClass::Loopback),
    (v6([0, 0, 0, 0, 0, 0, 0, 0]), 96, AddressClass::Reserved),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0]), 96, AddressClass::Translated),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0]), 48, AddressClass::Translated),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0]), 23, AddressClass::Translated),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0]), 32, AddressClass::Documentation),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0]), 16, AddressClass::Translated),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0]), 20, AddressClass::Documentation),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0]), 7, AddressClass::Private),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0]), 10, AddressClass::LinkLocal),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8, AddressClass::Multicast),
    (v6([0x2000, 0, 0, 0, 0, 0, 0, 0]), 3, AddressClass::Public),
    (0, 0, AddressClass::Reserved),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
    (Ipv4Addr::new(a, b, c, d).to_bits() as u128) << 96
}

const fn v6(parts: [u16; 8]) -> u128 {
    let [a, b, c, d, e, f, g, h] = parts;
    Ipv6Addr::new(a, b, c, d, e, f, g, h).to_bits()
}

/// A range of addresses that a connection may dial although they are not public: `10.1.0.0/16`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    first: IpAddr,
    length: u32,
}

/// Text that is no range which a connection may allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeInvalid {
    /// Not an address with a length.
    #[error("a range is an address and a length, such as 10.1.0.0/16, or one address")]
    Form,
    /// Bits beyond the length are set.
    #[error("the range begins before this address: leave out what its length does not cover")]
    Bits,
    /// Other addresses than a connection may allow.
    #[error("only ranges of loopback, private and shared addresses can be allowed, and this one has others")]
    Class,
}

impl AddressRange {
    /// Reads a range of addresses that may be allowed.
    pub fn parse(text: &str) -> Result<Self, RangeInvalid> {
        let (address, length) = text.split_once('/').map_or((text, None), |(at, length)| (at, Some(length)));
        let first: IpAddr = address.parse().map_err(|_| RangeInvalid::Form)?;
        let bits = if first.is_ipv4() { 32 } else { 128 };
        let is_plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let length = match length {
            Some(text) => Some(text).filter(is_plain).and_then(|text| text.parse().ok()),
            None => Some(bits),
        };
        let length = length.filter(|length| *length <= bits).ok_or(RangeInvalid::Form)?;
        let range = Self { first, length };
        if range.upper(first) & !mask(length) != 0 {
            return Err(RangeInvalid::Bits);
        }
        // The classes are ranges, too: a range with one class at both of its ends is inside of it.
        let last = range.upper(first) | !mask(length);
        let last = match first {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits((last >> 96) as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(last)),
        };
        let class = AddressClass::of(first);
        let is_one = class == AddressClass::of(last) && canonical(first) == first;
        if is_one && class.may_be_allowed() { Ok(range) } else { Err(RangeInvalid::Class) }
    }

    /// Whether the range has this address.
    pub fn has(&self, address: IpAddr) -> bool {
        let address = canonical(address);
        address.is_ipv4() == self.first.is_ipv4()
            && (self.upper(address) ^ self.upper(self.first)) & mask(self.length) == 0
    }

    fn upper(&self, address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        }
    }
}

/// Whether a connection with these ranges may dial an address.
pub fn may_dial(address: IpAddr, allowed: &[AddressRange]) -> bool {
    let class = AddressClass::of(address);
    class == AddressClass::Public
        || (class.may_be_allowed() && allowed.iter().any(|range| range.has(address)))
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

impl FromStr for AddressRange {
    type Err = RangeInvalid;
    fn from_str(text: &str) -> Result<Self, RangeInvalid> {
        Self::parse(text)
    }
}

impl TryFrom<String> for AddressRange {
    type Error = RangeInvalid;
    fn try_from(text: String) -> Result<Self, RangeInvalid> {
        Self::parse(&text)
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}

schema_of!(AddressRange, { "type": "string", "minLength": 2, "maxLength": 49 });

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The first and the last address of each range, and their neighbours outside.
    #[test]
    fn every_range_begins_and_ends_where_the_registries_say() {
        use AddressClass::*;
        for (address, class) in [
            ("0.0.0.0", Reserved),
            ("0.255.255.255", Reserved),
            ("1.0.0.0", Public),
            ("9.255.255.255", Public),
            ("10.0.0.0", Private),
            ("10.255.255.255", Private),
            ("11.0.0.0", Public),
            ("100.63.255.255", Public),
            ("100.64.0.0", Shared),
            ("100.127.255.255", Shared),
            ("100.100.100.200", Metadata),
            ("100.128.0.0", Public),
            ("126.255.255.255", Public),
            ("127.0.0.0", Loopback),
            ("127.0.0.1", Loopback),
            ("127.255.255.255", Loopback),
            ("128.0.0.0", Public),
            ("168.63.129.16", Metadata),
            ("168.63.129.17", Public),
            ("169.253.255.255", Public),
            ("169.254.0.0", LinkLocal),
            ("169.254.169.254", Metadata),
            ("169.254.170.2", Metadata),
            ("169.254.255.255", LinkLocal),
            ("169.255.0.0", Public),
            ("172.15.255.255", Public),
            ("172.16.0.0", Private),
            ("172.31.255.255", Private),
            ("172.32.0.0", Public),
            ("192.0.0.0", Reserved),
            ("192.0.0.192", Metadata),
            ("192.0.0.255", Reserved),
            ("192.0.1.0", Public),
            ("192.0.2.1", Documentation),
            ("192.88.98.255", Public),
            ("192.88.99.1", Translated),
            ("192.88.100.0", Public),
            ("192.167.255.255", Public),
            ("192.168.0.0", Private),
            ("192.168.255.255", Private),
            ("192.169.0.0", Public),
            ("198.17.255.255", Public),
            ("198.18.0.0", Documentation),
            ("198.19.255.255", Documentation),
            ("198.20.0.0", Public),
            ("198.51.100.7", Documentation),
            ("203.0.113.7", Documentation),
            ("223.255.255.255", Public),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.0", Reserved),
            ("255.255.255.255", Reserved),
            ("::", Reserved),
            ("::1", Loopback),
            ("::2", Reserved),
            ("::127.0.0.1", Reserved),
            ("::8.8.8.8", Reserved),
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:169.254.169.254", Metadata),
            ("::ffff:8.8.8.8", Public),
            ("::ffff:0:8.8.8.8", Reserved),
            ("64:ff9b::127.0.0.1", Translated),
            ("64:ff9b::8.8.8.8", Translated),
            ("64:ff9b:1::1", Translated),
            ("100::1", Reserved),
            ("2001::1", Translated),
            ("2001:0:7f00:1::", Translated),
            ("2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", Translated),
            ("2001:200::", Public),
            ("2001:db8::1", Documentation),
            ("2001:4860:4860::8888", Public),
            ("2002:7f00:1::1", Translated),
            ("2606:4700::1", Public),
            ("3fff::1", Documentation),
            ("3fff:1000::", Public),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
            ("fc00::1", Private),
            ("fd00:ec2::254", Metadata),
            ("fdff::1", Private),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", Reserved),
            ("ff02::1", Multicast),
        ] {
            assert_eq!(AddressClass::of(address.parse().unwrap()), class, "{address}");
        }
    }

    #[test]
    fn a_host_has_one_spelling() {
        use HostInvalid::*;
        let (long, longest) = ("a".repeat(64), format!("{}.example", "a.".repeat(124)));
        for (text, why) in [
            ("", Length),
            (".", Length),
            (".example.org", Length),
            ("example.org.", Length),
            ("example..org", Length),
            (long.as_str(), Length),
            (longest.as_str(), Length),
            ("Example.org", Character),
            ("example.org:443", Character),
            ("user@example.org", Character),
            ("example.org/path", Character),
            ("example.org\0.evil.org", Character),
            ("example.org\\.evil.org", Character),
            ("example.org evil.org", Character),
            ("example.org#evil.org", Character),
            ("exa_mple.org", Character),
            ("-example.org", Character),
            ("example-.org", Character),
            ("[127.0.0.1]", Character),
            ("[::1]", Character),
            ("[example.org]", Character),
            ("::1]", Character),
            ("fe80::1%eth0", Scope),
            ("fe80::1%25eth0", Scope),
            ("127%2e0.0.1", Scope),
            ("exämple.org", Script),
            ("１２７.0.0.1", Script),
            ("127。0。0。1", Script),
            ("example。org", Script),
            ("ⓔxample.org", Script),
            ("localhost\u{200d}", Script),
            ("faß.de", Script),
            ("2130706433", Number),
            ("0x7f000001", Number),
            ("0x7f.0.0.1", Number),
            ("0x7f.1", Number),
            ("0177.0.0.1", Number),
            ("017700000001", Number),
            ("127.1", Number),
            ("127.0.1", Number),
            ("127.0.0.01", Number),
            ("127.0.0.1.1", Number),
            ("256.0.0.1", Number),
            ("example.org.0x1", Number),
            ("example.0x", Number),
            ("example.1", Number),
        ] {
            assert_eq!(Host::parse(text), Err(why), "{text:?}");
        }
        for name in ["localhost", "api.example.org", "xn--fa-hia.de", "1.example", "a-b.c", "0x.example"] {
            assert_eq!(Host::parse(name), Ok(Host::Name(name.to_owned())), "{name}");
        }
        for address in ["127.0.0.1", "8.8.8.8", "::1", "2606:4700::1", "::ffff:127.0.0.1"] {
            assert_eq!(Host::parse(address), Ok(Host::Address(address.parse().unwrap())), "{address}");
        }
    }

    #[test]
    fn a_connection_may_allow_inner_networks_and_nothing_else() {
        for text in ["127.0.0.1", "127.0.0.0/8", "10.1.0.0/16", "100.64.0.0/16", "::1", "fd12::/16"] {
            let range = AddressRange::parse(text).unwrap();
            assert_eq!(range.to_string().parse(), Ok(range), "{text}");
        }
        for (text, why) in [
            ("", RangeInvalid::Form),
            ("ten", RangeInvalid::Form),
            ("10.0.0.0/33", RangeInvalid::Form),
            ("10.0.0.0/+8", RangeInvalid::Form),
            ("10.0.0.0/", RangeInvalid::Form),
            ("10.1.0.0/8", RangeInvalid::Bits),
            ("0.0.0.0/0", RangeInvalid::Class),
            ("::/0", RangeInvalid::Class),
            ("8.8.8.8", RangeInvalid::Class),
            ("10.0.0.0/7", RangeInvalid::Class),
            ("169.254.169.254", RangeInvalid::Class),
            ("169.254.0.0/16", RangeInvalid::Class),
            ("224.0.0.1", RangeInvalid::Class),
            ("fe80::/10", RangeInvalid::Class),
            ("::ffff:127.0.0.1", RangeInvalid::Class),
            ("64:ff9b::/96", RangeInvalid::Class),
        ] {
            assert_eq!(AddressRange::parse(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn an_allowed_range_opens_itself_and_no_service_of_credentials() {
        let ranges: Vec<_> = ["10.0.0.0/8", "100.64.0.0/10", "fd00::/8", "::1"]
            .map(|text| AddressRange::parse(text).unwrap())
            .into();
        for (address, may) in [
            ("8.8.8.8", true),
            ("10.9.8.7", true),
            ("::ffff:10.9.8.7", true),
            ("::1", true),
            ("fd00::1", true),
            ("100.100.100.100", true),
            ("127.0.0.1", false),
            ("192.168.0.1", false),
            ("100.100.100.200", false),
            ("fd00:ec2::254", false),
            ("169.254.169.254", false),
            ("64:ff9b::10.9.8.7", false),
            ("2002:a09:807::", false),
        ] {
            assert_eq!(may_dial(address.parse().unwrap(), &ranges), may, "{address}");
            let alone = may_dial(address.parse().unwrap(), &[]);
            assert_eq!(alone, address == "8.8.8.8", "{address} without a range");
        }
    }
}
