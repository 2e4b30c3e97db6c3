#!/usr/bin/env bash
# Rows of CSV files: trained on, and predicted by the model's file. What training does and refuses
# is tests/apps/tables_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
predict=$build/bin/starling-predict

awk 'BEGIN { printf "a,\"price, in k\",b\r\n"; for (i = 1; i <= 120; ++i) printf "%d,%d,\"%d\"\r\n", i, 3 * i + 7 * (i % 5), i % 5 }' >flats.csv
cat >run.json <<'END'
{"data": {"type": "csv", "path": "flats.csv", "target": "price, in k"}, "model": {"type": "sequential", "layers": [{"type": "linear", "out_features": 1}]},
 "batch_size": 9, "epochs": 40, "optimizer": {"type": "sgd", "lr": 0.1}, "log_every": 20, "evaluate": {"every_epochs": 0}}
END
check "a regression, on 2 ranks" 0 "test r2 (1.0000|0.999[0-9])" ranks 2 "$train" run.json --output run
printf 'b,note,a\n4,x,100\n\n0,y,50\n' >new.csv
check "a line a row, columns by name" 0 "^new.csv:2: 32[78]" "$predict" run new.csv
check "an empty line is no row" 0 "^new.csv:4: (149|150)" "$predict" run new.csv
check "as JSON" 0 '^\{"file":"new.csv","row":2,"outputs":\[32[78]' "$predict" run/model.safetensors new.csv --json
printf 'a,c\n1,2\n' >lacks.csv
check "a column that is not there" 2 "^starling-predict: \[data\] lacks.csv: has no column 'b' \(which the model was trained with\); its columns: 'a', 'c'" "$predict" run lacks.csv
printf 'a,b\n1,two\n' >word.csv
check "a word" 2 "^starling-predict: \[data\] word.csv: row 2, column 'b': is 'two'; needed: a number" "$predict" run word.csv
check "a picture" 2 "^starling-predict: \[data\] .*420.jpg: line [0-9]+ is not UTF-8" "$predict" run "$root/tests/golden/pictures/420.jpg"

verify "as a table" "$predict" run new.csv --out predictions.csv
verify "a row each, by file and row" grep -qE '^new.csv,2,32[78]' predictions.csv
verify "under its head" test "$(head -n 1 predictions.csv)" = file,row,prediction
verify "over one of its kind" "$predict" run new.csv new.csv --out predictions.csv
verify "which is wholly replaced" test "$(wc -l <predictions.csv)" = 5
echo mine >foreign.csv
check "over another file" 2 "--out foreign.csv: the file is there already and holds no table of predictions" "$predict" run new.csv --out foreign.csv
verify "which stays" test "$(cat foreign.csv)" = mine
check "where nothing can be written" 5 "no/p.csv" "$predict" run new.csv --out no/p.csv
check "a table that is wrong leaves no file" 2 "row 2, column 'b'" "$predict" run word.csv --out none.csv
verify "none" test ! -e none.csv
check "not with other forms" 2 "--out" "$predict" run new.csv --out p.csv --json
check "of a pipe" 0 "^-:2: 32[78]" sh -c '"$0" run - <new.csv' "$predict"
check "of a pipe by name" 0 "^/dev/stdin:4: (149|150)" sh -c 'cat new.csv | "$0" run /dev/stdin' "$predict"
check "of a folder" 2 "cannot open \\.: it is a folder" "$predict" run .

sed 's/price, in k/kind/; s/,[0-9]*[02468],"/,even,"/; s/,[0-9]\+,"/,odd,"/' flats.csv >kinds.csv
check "classes, on 2 ranks" 0 "test accuracy" ranks 2 "$train" run.json --output kinds --set data.path=kinds.csv --set data.target=kind \
  --set task.type=classification --set 'model={"type": "mlp", "hidden": [8]}' --set epochs=2
check "a line a row with the classes" 0 "^kinds.csv:121: (even|odd) [0-9.]+ %, (even|odd) [0-9.]+ %$" "$predict" kinds kinds.csv
check "as JSON" 0 '^\{"file":"kinds.csv","row":2,"top":\[\{"class":"(even|odd)","index":[01],"probability":' "$predict" kinds kinds.csv --json --top 1
verify "classes as a table" "$predict" kinds kinds.csv --out kinds-out.csv
verify "with probabilities" grep -qE '^kinds.csv,121,(even|odd),(0\.[0-9]+|1)$' kinds-out.csv
finish
