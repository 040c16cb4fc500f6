from cloister_bench.gpu.trials.run import main

if __name__ == "__main__":
    raise SystemExit(main())
