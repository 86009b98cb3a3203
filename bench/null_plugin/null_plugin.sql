-- Loaded by bench/decode.sh; null_plugin.so is found by dynamic_library_path.
CREATE FUNCTION null_decode(slot name, upto pg_lsn,
							OUT seconds float8, OUT cpu float8,
							OUT commits bigint, OUT changes bigint)
	LANGUAGE c STRICT
	AS 'null_plugin', 'null_decode';
