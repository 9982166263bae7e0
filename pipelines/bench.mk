# Speed of the stages on this machine, at sizes that the published code was timed at too
# (docs/performance.md): 6 layers x 384, block 256, 8 sequences, GPT-2's vocabulary.

BENCH := runs/bench

.PHONY: bench
bench: $(BENCH)/shards/manifest.json
	@pipelines/bench.sh $(BIN) $(BENCH) $(DEVICE)
	cargo bench --bench tokenize -- $(BENCH)/text.txt
	cargo bench --bench ensemble -- --sequences 8

$(BENCH)/shards/manifest.json: testdata/toy/stories.txt | build
	rm -rf $(@D)
	$(BIN)/ao-tokenize --tokenizer gpt2 --quiet -o $(@D) $<
