# Units of ckpt/cache.
unit_tests += %D%/test_cache
