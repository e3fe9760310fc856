# Programs for others to begin with; tests/cases/mount/example_extents.sh and
# tests/cases/library/example.sh compile and run them, tests/interop/recipes.sh the
# others.
exampledir = $(docdir)/examples
dist_example_DATA = %D%/extents.c %D%/uckpt.c %D%/hf_trainer.py \
	%D%/accelerate_state.py %D%/deepspeed_engine.py %D%/trl_lora.py \
	%D%/latest_universal.py %D%/lightning_deepspeed.py
dist_example_SCRIPTS = %D%/guide.sh %D%/megatron_deepspeed.sh
