# Every target sets up what it needs by itself; what each does is said once, in .ci/run.
TARGETS = demo test test-all gpu-test gpu-test-all lint format types docs venv release first-hour
.PHONY: all clean $(TARGETS)

all: test-all lint types

$(TARGETS):
	@.ci/run $@

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site *.egg-info
