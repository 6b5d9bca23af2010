<?php
// Code of a file that the program includes.
return \Shapes\fib(4)
    + array_sum(array_map(function ($n) {
        return \Shapes\fib($n);
    }, [2, 3]));
