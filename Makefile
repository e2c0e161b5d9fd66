# Every target sets up what it needs by itself; what each does is said once, in .ci/run.
TARGETS = demo test gpu-test lint format types docs venv
.PHONY: all clean $(TARGETS)

all: test lint types

$(TARGETS):
	@.ci/run $@

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site *.egg-info
