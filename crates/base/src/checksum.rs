//! The two checksums of ext4: CRC-32C chained by value (metadata_csum) and CRC-16 (gdt_csum).

/// CRC-32C (Castagnoli, reflected) of `bytes` continued from `seed`, without the customary final inversion.
///
/// ext4 chains checksums by value: `crc32c(crc32c(!0, a), b)` is the checksum of `a` followed by `b`.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005 reflected) of `bytes` continued from `seed`; group descriptors start at 0xFFFF.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let mut crc = seed;
    for &byte in bytes {
        crc = (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)];
    }
    crc
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xA001 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_published_check_value_before_its_final_inversion() {
        assert_eq!(crc32c(!0, b"123456789"), !0xE306_9283);
    }

    #[test]
    fn crc32c_chains_by_value() {
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
    }

    #[test]
    fn crc16_matches_the_published_check_values() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D); // CRC-16/ARC
        assert_eq!(crc16(0xFFFF, b"123456789"), 0x4B37); // CRC-16/MODBUS
    }
}
