#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Python package is typed, as py.typed promises, and so are uses by its callers.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"

mypy=$(command -v mypy) || skip "no mypy"
cat >"$tmp/good.py" <<'END'
import ucfs

with ucfs.open("/data/run", hf_dtype="bf16", ranks=[8, "8_z1"]) as ckpt:
    rows = ckpt[-1].parameters["lm_head.weight"].exp_avg[:10]
    newest: str = ckpt.latest
    state: dict[str, object] = ckpt[newest].state_dict("bf16")
END
sed 's/hf_dtype="bf16"/hf_dtyp="bf16"/' "$tmp/good.py" >"$tmp/bad.py"
# Check all in one slow run: the package, a program, and a misspelt option.
cat >"$tmp/config" <<'END'
[mypy]
strict = True
ignore_missing_imports = True
[mypy-numpy.*,torch.*,ml_dtypes.*,fsspec.*]
follow_imports = skip
END
MYPYPATH=$(realpath "$top_srcdir")/python "$mypy" --config-file "$tmp/config" \
	--enable-incomplete-feature=Unpack --cache-dir "$tmp/cache" "$tmp/good.py" "$tmp/bad.py" \
	>"$tmp/said" 2>&1
check "a misspelt option: $(cat "$tmp/said")" grep -q 'bad.py:3: error: .*"hf_dtyp"' "$tmp/said"
check "nothing else" test "$(grep -c 'error: ' "$tmp/said")" = 1
finish
